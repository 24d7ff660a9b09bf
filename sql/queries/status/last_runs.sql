-- Status: the last runs and why they stopped. A run that has not ended and has no recent heartbeat is
-- dead: it was killed, or cannot reach Postgres. Leaves out runs that started in the future: the clock was
-- ahead. A heartbeat in the future is not recent.
-- $1 maximum runs, $2 seconds without a heartbeat after which a run is dead.
-- Zero rows: no run has started yet.
SELECT worker, host,
       to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS started_utc,
       extract(epoch FROM coalesce(ended_at, seen_at) - started_at)::float8 AS took_s,
       CASE WHEN ended_at IS NOT NULL THEN coalesce(stopped_because, 'unknown')
            WHEN seen_at < now() - $2::float8 * interval '1 second'
                 OR seen_at > now() + interval '1 minute' THEN 'dead'
            ELSE 'running' END AS state,
       error, rows_deleted, objects_deleted, bytes_freed, rows_failed, waiting_for
FROM cleanup_runs
WHERE started_at < now() + interval '1 minute'
ORDER BY started_at DESC
LIMIT $1::int
