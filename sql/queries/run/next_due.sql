-- Is anything due, and when is the next retry? No low-water mark and no SKIP LOCKED, so that a row in
-- another worker's uncommitted claim still counts: that claim may be rolled back.
-- $1 how far ahead to search for rows that back off, as an interval.
-- Always one row: the class (see claim/claim.sql) of the row that is due first (NULL = nothing is due),
-- and the milliseconds until the next row that backs off is due (NULL = none within $1).
SELECT
    (SELECT CASE WHEN last_error IS NULL OR starts_with(last_error, 'worker lease expired')
                 THEN least(greatest(attempts, 0), 32767) ELSE 0 END::smallint
     FROM pastes
     WHERE deletion_status = 'NOT_EXPIRED'
       AND coalesce(retry_at, expires_at) <= now()
       AND expires_at <= now()
       AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
            OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                 WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
     ORDER BY coalesce(retry_at, expires_at)
     LIMIT 1) AS due_class,
    (SELECT (extract(epoch FROM min(retry_at) - now()) * 1000)::bigint
     FROM pastes
     WHERE retry_at > now()
       AND retry_at <= now() + $1::text::interval
       AND deletion_status = 'NOT_EXPIRED'
       AND expires_at <= now()) AS next_retry_ms
