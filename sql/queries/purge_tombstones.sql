-- Purge: tombstones past their retention.
-- $1 retention in seconds, $2 rows per statement.
DELETE FROM pastes
WHERE short_code IN (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETED'
      AND deletion_initiated_at < now() - $1::float8 * interval '1 second'
    ORDER BY deletion_initiated_at
    LIMIT $2::int)
  AND deletion_status = 'DELETED'
