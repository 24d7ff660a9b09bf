-- Finish: the pastes go.
-- $1 claim id, $2 short codes (NULL = the whole claim).
DELETE FROM pastes
WHERE claim_id = $1
  AND deletion_status = 'DELETION_IN_PROGRESS'
  AND ($2::text[] IS NULL OR short_code = ANY ($2))
