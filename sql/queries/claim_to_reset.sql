-- Reset by hand, first statement: lock the claim. What this locking read returns is what the reset
-- goes by.
-- $1 claim id.
-- Zero rows: there is no such claim. NOWAIT: its worker is in the middle of a step.
SELECT id, worker, rows_claimed, released_at IS NOT NULL AS released,
       coalesce(heirs, '{}') AS heirs, coalesce(doomed_keys, '{}') AS doomed_keys,
       finished_at IS NOT NULL AS finished, reset_at IS NOT NULL AS reset,
       (extract(epoch FROM now()) - extract(epoch FROM heartbeat_at))::float8 AS silent_s
FROM deletion_claims
WHERE id = $1
FOR UPDATE NOWAIT
