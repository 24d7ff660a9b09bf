-- Give-back, first statement: lock one's own open claim.
-- $1 claim id, $2 worker uuid.
-- Zero rows: finished or reset: nothing to give back.
SELECT id, worker, rows_claimed, released_at IS NOT NULL AS released,
       coalesce(heirs, '{}') AS heirs, coalesce(doomed_keys, '{}') AS doomed_keys
FROM deletion_claims
WHERE id = $1 AND worker = $2 AND finished_at IS NULL AND reset_at IS NULL
FOR UPDATE
