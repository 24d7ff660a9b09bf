-- Orphans, last statement: they go back to NOT_EXPIRED.
-- $1 short codes, locked; $2 backoff cap in seconds.
-- In hash order, as in reset_pastes.sql.
WITH back AS MATERIALIZED (
    SELECT short_code FROM pastes WHERE short_code = ANY ($1) ORDER BY content_hash
)
UPDATE pastes
SET deletion_status = 'NOT_EXPIRED',
    deletion_initiated_at = NULL,
    claim_id = NULL,
    attempts = least(attempts + 1, 32767),
    retry_at = now() + least((attempts + 1) ^ 2, $2::float8) * interval '1 second',
    last_error = 'worker lease expired: in progress without an open claim'
FROM back
WHERE pastes.short_code = back.short_code
