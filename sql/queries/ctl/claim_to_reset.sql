-- Reset by an operator, first statement: locks the claim. The reset uses only what this locking read
-- returns.
-- $1 claim id.
-- Zero rows: there is no such claim. NOWAIT fails if its worker is in the middle of a step.
SELECT id, worker, rows_claimed, decremented_at IS NOT NULL AS decremented,
       coalesce(pending_owners, '{}') AS pending_owners, coalesce(pending_s3_keys, '{}') AS pending_s3_keys,
       finished_at IS NOT NULL AS finished, reset_at IS NOT NULL AS reset,
       (extract(epoch FROM now()) - extract(epoch FROM cleanup_last_heartbeat(deletion_claims)))::float8 AS heartbeat_age_s
FROM deletion_claims
WHERE id = $1
FOR UPDATE NOWAIT
