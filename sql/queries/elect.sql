-- One watchdog per tick: whoever gets this lock does the work; it ends with the transaction.
SELECT pg_try_advisory_xact_lock(hashtext('paste-cleanup'), hashtext('watchdog')) AS elected
