-- Finish, with retention.tombstones: keeps the pastes as rows without content.
-- $1 claim id, $2 short codes (NULL = the whole claim). By id and time, as in finish/delete_rows.sql.
-- One row for each tombstone. Fewer rows than the claim has: a trigger swallows or undoes the UPDATE.
WITH written AS (
    UPDATE pastes
    SET deletion_status = 'DELETED',
        deletion_initiated_at = now(),
        claim_id = NULL,
        content_hash = NULL,
        pending_s3_key = NULL,
        retry_at = NULL
    WHERE claim_id = $1::bigint
      AND deletion_status = 'DELETION_IN_PROGRESS'
      AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
      -- A hash table of $2; `= ANY ($2)` would compare each row with every element.
      AND ($2::text[] IS NULL OR short_code IN (SELECT unnest($2::text[])))
    RETURNING deletion_status, claim_id
)
SELECT FROM written WHERE deletion_status = 'DELETED' AND claim_id IS NULL
