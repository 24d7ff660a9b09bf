-- Claim, first statement of its transaction: hold a lock in this worker's name until the claim is
-- committed. Whoever lost the answer of a claim takes the same lock to wait for the old backend.
-- Also says which schema this is: nobody claims on one that was migrated behind their back.
-- And whether there are rows that cannot be claimed: only then they are looked for.
-- $1 worker uuid as text.
SELECT pg_advisory_xact_lock(hashtext('paste-cleanup claim'), hashtext($1)),
       (SELECT max(version) FROM cleanup_migrations) AS schema_version,
       EXISTS (SELECT FROM cleanup_unclaimable) AS some_are_unclaimable
