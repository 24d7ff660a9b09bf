-- Claim, first statement of its transaction: hold a lock in this worker's name until the claim is
-- committed. Whoever lost the answer of a claim takes the same lock to wait for the old backend.
-- Also says which schema this is: nobody claims on one that was migrated behind their back, or that
-- has become the copy of another database by now. Which bucket and prefix the database is bound to:
-- nobody claims for another one. And whether there are rows that cannot be claimed:
-- only then they are looked for.
-- $1 worker uuid as text.
SELECT pg_advisory_xact_lock(hashtext('paste-cleanup claim'), hashtext($1)),
       (SELECT max(version) FROM cleanup_migrations) AS schema_version,
       (SELECT format('%s is the target of subscription %I', r.srrelid::regclass, s.subname)
        FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
        WHERE r.srrelid IN (to_regclass('pastes'), to_regclass('content'))
        ORDER BY r.srrelid::regclass::text DESC LIMIT 1) AS subscription,
       (SELECT bucket FROM cleanup_fleet) AS bucket, (SELECT prefix FROM cleanup_fleet) AS prefix,
       EXISTS (SELECT FROM cleanup_unclaimable) AS some_are_unclaimable
