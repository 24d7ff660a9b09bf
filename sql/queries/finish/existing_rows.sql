-- Decrement and finish, row by row: which of the batch's rows exist, and which still belong to the
-- claim?
-- $1 short codes, $2 claim id.
-- Zero rows for a short code: something else deleted the paste.
SELECT short_code,
       coalesce(claim_id = $2::bigint AND deletion_status = 'DELETION_IN_PROGRESS', false) AS is_ours
FROM pastes
WHERE short_code = ANY ($1)
