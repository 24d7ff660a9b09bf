-- One watchdog per tick: whoever gets this lock does the work; it ends with the transaction.
-- Also says which schema this is: nobody resets on one that was migrated behind their back.
SELECT pg_try_advisory_xact_lock(hashtext('paste-cleanup'), hashtext('watchdog')) AS elected,
       (SELECT max(version) FROM cleanup_migrations) AS schema_version
