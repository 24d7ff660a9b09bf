-- Heartbeat: one statement for all open claims of a worker. SKIP LOCKED, so that one blocked decrement
-- cannot stop the heartbeat of the other claims.
-- $1 all open claims, $2 worker uuid, $3 those that make progress and get a heartbeat.
-- One row for each open claim: whether the heartbeat was accepted, whether the lease is lost (the claim
-- was reset, or is another worker's), and whether its row is locked (`busy`), usually by a slow step of
-- the worker itself.
WITH alive AS MATERIALIZED (
    SELECT id
    FROM deletion_claims
    WHERE id = ANY ($3::bigint[]) AND worker = $2 AND reset_at IS NULL AND finished_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), heartbeat AS (
    UPDATE deletion_claims SET heartbeat_at = now()
    FROM alive
    WHERE deletion_claims.id = alive.id
    RETURNING deletion_claims.id
)
SELECT open.id,
       heartbeat.id IS NOT NULL AS accepted,
       (claim.id IS NULL OR claim.reset_at IS NOT NULL) AS lost,
       (heartbeat.id IS NULL AND open.id = ANY ($3::bigint[])) AS busy
FROM unnest($1::bigint[]) AS open (id)
LEFT JOIN heartbeat ON heartbeat.id = open.id
LEFT JOIN deletion_claims claim ON claim.id = open.id AND claim.worker = $2
