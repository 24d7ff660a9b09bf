-- Claim, careful: remember rows that Postgres does not let us mark. Found again and again, they are
-- tried less and less often.
-- $1 short codes, $2 errors, $3 in how many seconds each is tried again, if it was not known yet.
INSERT INTO cleanup_unclaimable AS known (short_code, error, retry_at)
SELECT short_code, left(error, 500), now() + retry_s * interval '1 second'
FROM unnest($1::text[], $2::text[], $3::float8[]) AS found (short_code, error, retry_s)
ON CONFLICT (short_code) DO UPDATE
SET error = excluded.error, found_at = now(),
    retry_at = now() + least(2 * (known.retry_at - known.found_at), interval '30 days')
