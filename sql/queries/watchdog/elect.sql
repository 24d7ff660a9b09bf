-- Elects one watchdog per transaction: the one that gets this lock does the work; the lock ends with the
-- transaction.
-- Also returns the schema version, the subscription and whether a table inherits: no watchdog resets on
-- a database that was migrated meanwhile, that has become the copy of another one, or whose statements
-- affect the rows of two tables.
-- Parameters: none. Always one row.
SELECT pg_try_advisory_xact_lock(hashtext('paste-cleanup'), hashtext('watchdog')) AS elected,
       (SELECT max(version) FROM cleanup_migrations) AS schema_version,
       (SELECT format('%s is the target of subscription %I', r.srrelid::regclass, s.subname)
        FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
        WHERE r.srrelid IN (to_regclass('pastes'), to_regclass('content'))
        ORDER BY r.srrelid::regclass::text DESC LIMIT 1) AS subscription,
       EXISTS (SELECT FROM pg_inherits
               WHERE inhparent IN (to_regclass('pastes'), to_regclass('content'))
                  OR inhrelid IN (to_regclass('pastes'), to_regclass('content'))) AS inherits
