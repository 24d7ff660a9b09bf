-- Reads a claim back after an answer was lost. FOR UPDATE waits for the old backend, which may still
-- be committing. It also makes the result safe to act on: a row lock has a transaction id, so this
-- transaction's COMMIT waits for a synchronous standby, and with it for every commit before it. A
-- plain read would show a decrement that is committed on this server alone (its backend was ended
-- while it waited for the standby). A failover would lose that decrement after its objects are deleted.
-- $1 claim id, $2 worker uuid.
-- Zero rows: this worker has no such claim.
SELECT decremented_at IS NOT NULL AS decremented, pending_owners, pending_s3_keys, coalesce(bytes_freed, 0) AS bytes,
       finished_at IS NOT NULL AS finished, reset_at IS NOT NULL AS reset,
       coalesce(rows_deleted, 0)::bigint AS rows_deleted
FROM deletion_claims
WHERE id = $1 AND worker = $2
FOR UPDATE
