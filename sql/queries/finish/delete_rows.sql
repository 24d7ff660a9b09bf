-- Finish: the pastes go.
-- $1 claim id, $2 short codes (NULL = the whole claim).
-- By the claim's id and its time: ids can start again (a restored dump, a truncated table), and rows
-- of an older claim with the same number have not let go of their references.
DELETE FROM pastes
WHERE claim_id = $1
  AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
  -- Looked up in a hash table; `= ANY ($2)` would compare each row with all of them.
  AND ($2::text[] IS NULL OR short_code IN (SELECT unnest($2::text[])))
