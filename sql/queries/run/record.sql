-- Records the progress of a run: at its start, with every heartbeat, and at its end.
-- $1 worker uuid, $2 host, $3 seconds since it started, $4 ended, $5 stopped because, $6 error,
-- $7 pastes, $8 objects, $9 bytes, $10 failed pastes, $11 what it waits for, $12 stats,
-- $13 claims that the heartbeat could not reach: see cleanup_last_heartbeat().
-- A record that arrives after the run was recorded as ended changes nothing.
INSERT INTO cleanup_runs AS run
    (worker, host, started_at, seen_at, ended_at, stopped_because, error,
     rows_deleted, objects_deleted, bytes_freed, rows_failed, waiting_for, stats, busy_claims)
VALUES ($1, $2, now() - $3::float8 * interval '1 second', now(), CASE WHEN $4 THEN now() END, $5, $6,
        $7, $8, $9, $10, $11, $12::text::jsonb, $13)
ON CONFLICT (worker) DO UPDATE
SET seen_at = excluded.seen_at,
    ended_at = excluded.ended_at,
    stopped_because = excluded.stopped_because,
    error = excluded.error,
    rows_deleted = excluded.rows_deleted,
    objects_deleted = excluded.objects_deleted,
    bytes_freed = excluded.bytes_freed,
    rows_failed = excluded.rows_failed,
    waiting_for = excluded.waiting_for,
    stats = excluded.stats,
    busy_claims = excluded.busy_claims
WHERE run.ended_at IS NULL
