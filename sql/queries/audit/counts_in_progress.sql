-- Audit: how many pastes in progress still hold each of these bodies? Only rows of open claims that
-- have not been decremented, and rows without a claim: there are indexes for just these, and no walk
-- over all that the night has left behind. Rows of a claim that was ended by hand hold their body,
-- too; the watchdog resets them, and who asks again under the lock counts them.
-- $1 content hashes.
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
) AS holder
WHERE content_hash = ANY ($1)
GROUP BY content_hash
