-- Heartbeat: one statement for all open claims of a worker. SKIP LOCKED, so that one blocked
-- release cannot stop the beat of the others.
-- $1 all open claims, $2 worker uuid, $3 those that make progress and are to be beaten.
-- One row per open claim: beaten or not, whether it was lost (reset, or not ours), and whether it should
-- have been beaten, but its row is locked: by a step of the worker's own that takes its time, as a rule.
WITH alive AS MATERIALIZED (
    SELECT id
    FROM deletion_claims
    WHERE id = ANY ($3::bigint[]) AND worker = $2 AND reset_at IS NULL AND finished_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), beat AS (
    UPDATE deletion_claims SET heartbeat_at = now()
    FROM alive
    WHERE deletion_claims.id = alive.id
    RETURNING deletion_claims.id
)
SELECT held.id,
       beat.id IS NOT NULL AS beaten,
       (claim.id IS NULL OR claim.reset_at IS NOT NULL) AS lost,
       (beat.id IS NULL AND held.id = ANY ($3::bigint[])) AS busy
FROM unnest($1::bigint[]) AS held (id)
LEFT JOIN beat ON beat.id = held.id
LEFT JOIN deletion_claims claim ON claim.id = held.id AND claim.worker = $2
