-- Finish, careful: which of the batch's rows are there, and which still belong to the claim?
-- $1 short codes, $2 claim id.
-- A short code that is missing from the answer was deleted by something else.
SELECT short_code,
       coalesce(claim_id = $2::bigint AND deletion_status = 'DELETION_IN_PROGRESS', false) AS is_ours
FROM pastes
WHERE short_code = ANY ($1)
