-- Finish, careful: lock the batch's rows as far as nobody else has them locked.
-- $1 short codes, $2 claim id. Ends with the strength of the lock, which depends on what follows.
SELECT short_code
FROM pastes
WHERE claim_id = $2 AND deletion_status = 'DELETION_IN_PROGRESS'
  -- `IS TRUE` keeps the planner from making a join of it: one walk, and a hash table of $1.
  AND (short_code IN (SELECT unnest($1::text[]))) IS TRUE
FOR
