-- Finish: deletes the pastes.
-- $1 claim id, $2 short codes (NULL = the whole claim).
-- By the claim's id and its time: ids can start again (a restored dump, a truncated table), and rows
-- of an older claim with the same id still have their references.
DELETE FROM pastes
WHERE claim_id = $1::bigint
  AND deletion_status = 'DELETION_IN_PROGRESS'
  AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
  -- A hash table of $2; `= ANY ($2)` would compare each row with every element.
  AND ($2::text[] IS NULL OR short_code IN (SELECT unnest($2::text[])))
