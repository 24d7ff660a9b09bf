-- Decrement, first statement: the fence. Records that the references of the whole batch are subtracted
-- in this transaction, and counts as a heartbeat.
-- $1 claim id, $2 worker uuid.
-- Zero rows: the claim was reset, or already decremented by a transaction whose answer was lost. Read
-- the claim back.
UPDATE deletion_claims
SET decremented_at = now(), heartbeat_at = now()
WHERE id = $1 AND worker = $2
  AND reset_at IS NULL AND finished_at IS NULL AND decremented_at IS NULL
