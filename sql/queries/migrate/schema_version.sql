-- The newest migration that this database has completed, and the subscription that fills its tables.
-- Parameters: none. Always one row; `schema_version` is NULL if no migration is complete,
-- `subscription` is NULL if there is none. A disabled subscription counts: its tables are a copy, too.
-- 42P01 (undefined_table) means that the database was never migrated.
SELECT (SELECT max(version) FROM cleanup_migrations) AS schema_version,
       (SELECT format('%s is the target of subscription %I', r.srrelid::regclass, s.subname)
        FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
        WHERE r.srrelid IN (to_regclass('pastes'), to_regclass('content'))
        ORDER BY r.srrelid::regclass::text DESC LIMIT 1) AS subscription,
       EXISTS (SELECT FROM pg_inherits
               WHERE inhparent IN (to_regclass('pastes'), to_regclass('content'))
                  OR inhrelid IN (to_regclass('pastes'), to_regclass('content'))) AS inherits;
