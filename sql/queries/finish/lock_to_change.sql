-- Finish, row by row: locks the batch's rows as an UPDATE needs it (which takes them out of the claim, or
-- makes them tombstones), except those that another transaction has locked.
-- $1 short codes, $2 claim id. A row that is not returned is locked, or no longer the claim's.
SELECT short_code
FROM pastes
WHERE claim_id = $2::bigint AND deletion_status = 'DELETION_IN_PROGRESS'
  -- `IS TRUE` keeps the planner from turning it into a join: one walk, and a hash table of $1.
  AND (short_code IN (SELECT unnest($1::text[]))) IS TRUE
FOR NO KEY UPDATE SKIP LOCKED
