-- Reset, careful: lock the claim's rows as far as nobody else has them locked, in hash order as in
-- reset_pastes.sql.
-- $1 claim id.
-- `rows` is how many there are. Zero rows: none is left, or others hold all of them.
SELECT short_code,
       (SELECT count(*) FROM pastes every
        WHERE every.claim_id = $1 AND every.deletion_status = 'DELETION_IN_PROGRESS'
          AND every.deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1))
           AS rows
FROM pastes
WHERE claim_id = $1 AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
ORDER BY content_hash
FOR NO KEY UPDATE OF pastes SKIP LOCKED
