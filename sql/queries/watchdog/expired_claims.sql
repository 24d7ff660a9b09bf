-- Reset, first statement: lock whole claims whose worker is silent. What this locking read
-- returns is what the reset goes by.
-- $1 stuck_after in seconds, $2 claims per transaction, $3 claims that could not be reset in this
-- sweep.
-- Zero rows: nobody is silent (or their claims are locked right now: the next tick looks again).
SELECT id, worker, rows_claimed, decremented_at IS NOT NULL AS decremented,
       coalesce(pending_owners, '{}') AS pending_owners, coalesce(pending_s3_keys, '{}') AS pending_s3_keys
FROM deletion_claims
WHERE finished_at IS NULL AND reset_at IS NULL
  -- The column is what the index has.
  AND heartbeat_at < now() - $1::float8 * interval '1 second'
  AND cleanup_last_heartbeat(deletion_claims) < now() - $1::float8 * interval '1 second'
  AND id <> ALL ($3::bigint[])
ORDER BY heartbeat_at
LIMIT $2::int
FOR UPDATE OF deletion_claims SKIP LOCKED
