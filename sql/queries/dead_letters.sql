-- Dead letters, the longest overdue first.
-- $1 a piece of last_error (NULL = any), $2 how many.
SELECT short_code, attempts::int AS attempts, last_error, doomed_key,
       (extract(epoch FROM now() - expires_at))::bigint AS overdue_s
FROM pastes
WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'
  AND ($1::text IS NULL OR position($1 IN last_error) > 0)
ORDER BY expires_at
LIMIT $2::bigint
