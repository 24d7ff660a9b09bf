-- Reset of a released claim whose heirs are not all there: rows that owe nothing yet.
-- $1 claim id, $2 how many are needed.
SELECT short_code
FROM pastes
WHERE claim_id = $1 AND deletion_status = 'DELETION_IN_PROGRESS' AND doomed_key IS NULL
LIMIT $2::bigint
