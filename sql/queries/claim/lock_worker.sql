-- Claim, first statement of its transaction: takes an advisory lock on the worker's uuid until the
-- claim is committed. After the answer of a claim was lost, the worker takes the same lock to wait for
-- the old backend.
-- Also returns what must still hold for a claim: the schema version (the database may have been
-- migrated meanwhile), the subscription (it may have become the copy of another database), whether a
-- table inherits from another one (a claim would mark rows of both), the bucket and prefix that the
-- database is bound to, and whether any rows are unclaimable now (only then claim/claim.sql searches
-- for them).
-- $1 worker uuid as text.
-- Always one row.
SELECT pg_advisory_xact_lock(hashtext('paste-cleanup claim'), hashtext($1)),
       (SELECT max(version) FROM cleanup_migrations) AS schema_version,
       (SELECT format('%s is the target of subscription %I', r.srrelid::regclass, s.subname)
        FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
        WHERE r.srrelid IN (to_regclass('pastes'), to_regclass('content'))
        ORDER BY r.srrelid::regclass::text DESC LIMIT 1) AS subscription,
       EXISTS (SELECT FROM pg_inherits
               WHERE inhparent IN (to_regclass('pastes'), to_regclass('content'))
                  OR inhrelid IN (to_regclass('pastes'), to_regclass('content'))) AS inherits,
       (SELECT bucket FROM cleanup_fleet) AS bucket, (SELECT prefix FROM cleanup_fleet) AS prefix,
       EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now()) AS some_are_unclaimable
