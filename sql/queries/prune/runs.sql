-- Prune: deletes runs after retention.history, once they are in the totals.
-- $1 retention in seconds, $2 runs per statement.
DELETE FROM cleanup_runs
WHERE worker IN (
    SELECT worker FROM cleanup_runs
    WHERE started_at < now() - $1::float8 * interval '1 second'
      AND seen_at < now() - $1::float8 * interval '1 second'
      AND stats = counted
    ORDER BY started_at
    LIMIT $2::int)
