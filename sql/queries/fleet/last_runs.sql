-- Status: the last runs and why they stopped. A run that neither ended nor wrote lately is gone: killed,
-- or out of Postgres' reach.
-- $1 how many, $2 seconds of silence after which a run counts as gone.
SELECT worker, host,
       to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS started_utc,
       extract(epoch FROM coalesce(ended_at, seen_at) - started_at)::float8 AS took_s,
       CASE WHEN ended_at IS NOT NULL THEN coalesce(stopped_because, 'unknown')
            WHEN seen_at < now() - $2::float8 * interval '1 second' THEN 'dead'
            ELSE 'running' END AS state,
       error, rows_deleted, objects_deleted, bytes_freed, rows_failed, waiting_for
FROM cleanup_runs
ORDER BY started_at DESC
LIMIT $1::int
