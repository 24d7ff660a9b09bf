-- Decrement: how many rows does the claim still have?
-- $1 claim id. Always one row. Fewer than were claimed: something else deleted or reset pastes.
SELECT count(*) AS rows
FROM pastes
WHERE claim_id = $1::bigint
  AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
