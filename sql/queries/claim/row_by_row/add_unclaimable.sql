-- Claim, row by row: records rows that Postgres does not let the worker mark. A row that is refused
-- again waits twice as long as before, at most 30 days.
-- $1 short codes, $2 errors, $3 seconds until each is tried again, $4 whether that time doubles for a
-- row recorded before (false for a row that was only locked or slow).
INSERT INTO cleanup_unclaimable AS known (short_code, error, retry_at)
SELECT short_code, left(error, 500),
       now() + CASE WHEN doubles THEN greatest(1, (
           SELECT least(2 * extract(epoch FROM known.retry_at - known.found_at), 30 * 86400)
           FROM cleanup_unclaimable known WHERE known.short_code = found.short_code
             AND known.retry_at - known.found_at >= retry_s * interval '1 second'), retry_s)
       ELSE retry_s END * interval '1 second'
FROM unnest($1::text[], $2::text[], $3::float8[], $4::boolean[])
     AS found (short_code, error, retry_s, doubles)
ON CONFLICT (short_code) DO UPDATE
SET error = excluded.error, found_at = now(), retry_at = excluded.retry_at
