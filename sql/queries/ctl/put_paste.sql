-- Stores a paste through the writer's contract: see the comment of paste_put().
-- $1 short code, $2 content hash, $3 key of a fresh upload (NULL = none yet), $4 bytes,
-- $5 seconds until it expires (negative = already expired, NULL = never).
-- Always one row.
SELECT outcome, s3_key, drop_upload
FROM paste_put($1, $2, $3, $4, now() + $5::float8 * interval '1 second')
