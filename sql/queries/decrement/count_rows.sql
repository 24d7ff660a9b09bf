-- Decrement: how many rows are still the claim's?
-- $1 claim id. Fewer than it claimed: something else has deleted pastes, or has put them back.
SELECT count(*) AS rows
FROM pastes
WHERE claim_id = $1
  AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
