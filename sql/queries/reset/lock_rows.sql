-- Reset, row by row: locks the claim's rows, except those that another transaction has locked, in hash
-- order as in reset/reset_rows.sql.
-- $1 claim id.
-- Zero rows: none are left, or other transactions have locked all of them.
SELECT short_code
FROM pastes
WHERE claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
ORDER BY content_hash
FOR NO KEY UPDATE OF pastes SKIP LOCKED
