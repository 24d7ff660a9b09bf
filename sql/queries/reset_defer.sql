-- Give-back after every paste of a batch failed: those that were tried alone come last from now on,
-- so that others are tried before them. It costs them no attempt.
-- $1 short codes, $2 their errors, $3 in how many seconds they are tried again.
UPDATE pastes
SET retry_at = now() + $3::float8 * interval '1 second', last_error = left(failed.error, 500)
FROM unnest($1::text[], $2::text[]) AS failed (short_code, error)
WHERE pastes.short_code = failed.short_code
  AND pastes.deletion_status = 'NOT_EXPIRED' AND pastes.retry_at IS DISTINCT FROM 'infinity'
