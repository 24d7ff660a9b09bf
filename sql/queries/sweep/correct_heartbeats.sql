-- Sweep: corrects heartbeats in the future, written while the server's clock was ahead: such a claim
-- would never be reset. The heartbeat becomes now: a live worker sends the next one in time, and the
-- claim of a dead one expires after stuck_after.
-- Parameters: none. Zero rows: there are none, or their workers have locked them.
UPDATE deletion_claims SET heartbeat_at = now()
WHERE id = ANY (ARRAY(
    SELECT id FROM deletion_claims
    WHERE finished_at IS NULL AND reset_at IS NULL
      -- A heartbeat may be younger than this transaction.
      AND heartbeat_at > now() + interval '1 minute'
    FOR UPDATE SKIP LOCKED))
