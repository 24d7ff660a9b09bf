-- Decrement, first statement: the fence. Stamps the marker that the whole batch lets go of its
-- references in this transaction, and heartbeats.
-- $1 claim id, $2 worker uuid.
-- Zero rows: reset, or decremented already by a transaction whose answer was lost: read the claim.
UPDATE deletion_claims
SET decremented_at = now(), heartbeat_at = now()
WHERE id = $1 AND worker = $2
  AND reset_at IS NULL AND finished_at IS NULL AND decremented_at IS NULL
