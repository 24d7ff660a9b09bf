-- Claim, careful: mark some of the candidates, which are locked.
-- $1 claim id, $2 short codes.
UPDATE pastes
SET deletion_status = 'DELETION_IN_PROGRESS', deletion_initiated_at = now(), claim_id = $1
WHERE short_code = ANY ($2)
