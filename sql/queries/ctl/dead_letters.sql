-- Dead letters, the longest overdue first.
-- $1 part of last_error (NULL = any), $2 maximum rows.
-- Zero rows: there are none. `overdue_s` is NULL for a paste that expired at '-infinity'.
SELECT short_code, attempts::int AS attempts, last_error, pending_s3_key,
       CASE WHEN isfinite(expires_at)
            THEN extract(epoch FROM now() - expires_at)::bigint END AS overdue_s
FROM pastes
WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'
  AND ($1::text IS NULL OR position($1 IN last_error) > 0)
ORDER BY expires_at
LIMIT $2::bigint
