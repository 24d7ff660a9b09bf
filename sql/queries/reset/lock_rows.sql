-- Reset, careful: lock the claim's rows as far as nobody else has them locked, in hash order as in
-- reset/reset_rows.sql.
-- $1 claim id.
-- Zero rows: none is left, or others hold all of them.
SELECT short_code
FROM pastes
WHERE claim_id = $1 AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
ORDER BY content_hash
FOR NO KEY UPDATE OF pastes SKIP LOCKED
