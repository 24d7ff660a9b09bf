-- Reset, first statement: locks claims whose lease has expired. The reset uses only what this locking
-- read returns.
-- $1 stuck_after in seconds, $2 claims per transaction, $3 claims that this sweep could not reset.
-- Zero rows: no lease has expired, or the claims are locked now; the next tick tries again.
SELECT id, worker, rows_claimed, decremented_at IS NOT NULL AS decremented,
       coalesce(pending_owners, '{}') AS pending_owners, coalesce(pending_s3_keys, '{}') AS pending_s3_keys
FROM deletion_claims
WHERE finished_at IS NULL AND reset_at IS NULL
  -- By the column, too: it is the one that the index has.
  AND heartbeat_at < now() - $1::float8 * interval '1 second'
  AND cleanup_last_heartbeat(deletion_claims) < now() - $1::float8 * interval '1 second'
  AND id <> ALL ($3::bigint[])
ORDER BY heartbeat_at
LIMIT $2::int
FOR UPDATE OF deletion_claims SKIP LOCKED
