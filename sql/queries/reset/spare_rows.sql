-- Reset of a decremented claim, if some pending owners no longer exist or cannot be changed: rows of the
-- claim without a pending object delete, which can take over the keys.
-- $1 claim id, $2 maximum rows, $3 rows that can be changed (NULL = all).
-- Zero rows: there are none.
SELECT short_code
FROM pastes
WHERE claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS' AND pending_s3_key IS NULL
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
  AND ($3::text[] IS NULL OR short_code IN (SELECT unnest($3::text[])))
LIMIT $2::bigint
