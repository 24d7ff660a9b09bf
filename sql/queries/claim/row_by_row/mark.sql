-- Claim, row by row: marks some of the candidates, which are locked.
-- $1 claim id, $2 short codes.
-- Fewer rows than $2: a trigger swallows the UPDATE. `is_marked` false or NULL: a trigger undoes it.
UPDATE pastes
SET deletion_status = 'DELETION_IN_PROGRESS', deletion_initiated_at = now(), claim_id = $1::bigint
WHERE short_code = ANY ($2)
RETURNING claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS' AS is_marked
