-- Audit: how many pastes in progress still reference each of these content rows? Counts only rows of
-- open claims that have not been decremented, and rows without a claim: indexes exist for exactly
-- these, so that nothing walks over the dead entries of the night. Rows of a claim that was ended by
-- hand keep their reference, too. They are not counted here; the watchdog resets them, and the
-- recount under the lock (content/count_references.sql) includes them.
-- $1 content hashes.
-- Zero rows for a hash: no paste in progress references it.
SELECT content_hash, count(*) AS refs
FROM (
    SELECT content_hash FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS'
      AND claim_id = ANY (ARRAY(SELECT id FROM deletion_claims
                                WHERE finished_at IS NULL AND reset_at IS NULL
                                  AND decremented_at IS NULL))
    UNION ALL
    SELECT content_hash FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
) AS referencing
WHERE content_hash = ANY ($1)
GROUP BY content_hash
