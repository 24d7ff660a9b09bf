-- Sweep: open claims with a heartbeat in the future, from when the server's clock was ahead, would never
-- be reset. It becomes now: a worker that lives sends the next one in time, and another has stuck_after.
-- Parameters: none. Zero rows: there are none, or their workers hold them.
UPDATE deletion_claims SET heartbeat_at = now()
WHERE id = ANY (ARRAY(
    SELECT id FROM deletion_claims
    WHERE finished_at IS NULL AND reset_at IS NULL
      -- A heartbeat may be younger than this transaction.
      AND heartbeat_at > now() + interval '1 minute'
    FOR UPDATE SKIP LOCKED))
