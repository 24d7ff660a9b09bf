-- Finish, first statement: the fence. Closes the claim.
-- $1 claim id, $2 worker uuid, $3 objects deleted, $4 claim ms, $5 decrement ms, $6 delete ms,
-- $7 evict ms, $8 ms waited for the lock, $9 ms the lock was held.
-- Zero rows: the claim was reset, or already finished by a transaction whose answer was lost. Read the
-- claim back.
UPDATE deletion_claims
SET finished_at = now(), heartbeat_at = now(), objects_deleted = $3,
    claim_ms = $4, decrement_ms = $5, delete_ms = $6, evict_ms = $7, lock_wait_ms = $8, lock_hold_ms = $9
WHERE id = $1 AND worker = $2
  AND reset_at IS NULL AND finished_at IS NULL AND decremented_at IS NOT NULL
