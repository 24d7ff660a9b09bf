-- Release, first statement: locks the worker's own open claim.
-- $1 claim id, $2 worker uuid.
-- Zero rows: it is finished or reset already; there is nothing to release.
SELECT id, worker, rows_claimed, decremented_at IS NOT NULL AS decremented,
       coalesce(pending_owners, '{}') AS pending_owners, coalesce(pending_s3_keys, '{}') AS pending_s3_keys
FROM deletion_claims
WHERE id = $1 AND worker = $2 AND finished_at IS NULL AND reset_at IS NULL
FOR UPDATE
