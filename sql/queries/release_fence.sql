-- Release, first statement: the fence. Stamps the marker that the whole batch lets go of its
-- references in this transaction, and beats.
-- $1 claim id, $2 worker uuid.
-- Zero rows: reset, or released already by a transaction whose answer was lost: read the claim.
UPDATE deletion_claims
SET released_at = now(), heartbeat_at = now()
WHERE id = $1 AND worker = $2
  AND reset_at IS NULL AND finished_at IS NULL AND released_at IS NULL
