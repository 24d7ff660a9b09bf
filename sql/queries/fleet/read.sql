-- The one row of cleanup_fleet: bucket, prefix, pause, and the watchdog's last tick.
-- Parameters: none. Zero rows: the schema is not complete.
SELECT bucket, prefix, paused_at IS NOT NULL AS paused, pause_reason, current_database()::text AS database,
       extract(epoch FROM now() - watchdog_at)::float8 AS watchdog_s_ago
FROM cleanup_fleet
