-- Release after every paste of a batch failed: defers those that were tried alone, so that others are
-- tried before them. It does not count as an attempt.
-- $1 short codes, $2 their errors, $3 seconds until they are tried again.
-- No join, for the reason given in reset/assign_pending_keys.sql.
WITH failed AS MATERIALIZED (SELECT jsonb_object($1::text[], $2::text[]) AS errors)
UPDATE pastes
SET retry_at = now() + $3::float8 * interval '1 second',
    last_error = left(failed.errors ->> pastes.short_code, 500)
FROM failed
WHERE pastes.short_code = ANY ($1)
  AND pastes.deletion_status = 'NOT_EXPIRED' AND pastes.retry_at IS DISTINCT FROM 'infinity'
