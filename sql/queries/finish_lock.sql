-- Finish, careful: lock the batch's rows as far as nobody else has them locked.
-- $1 short codes, $2 claim id. Ends with the strength of the lock, which depends on what follows.
SELECT short_code
FROM pastes
WHERE short_code = ANY ($1) AND claim_id = $2 AND deletion_status = 'DELETION_IN_PROGRESS'
FOR
