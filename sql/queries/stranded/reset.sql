-- Stranded rows, last statement: sets them back to NOT_EXPIRED.
-- $1 short codes, locked; $2 whether each lost its reference with its claim; $3 whether it counts as an
-- attempt; $4 the key that its ended claim keeps for it (NULL = none); $5 backoff cap in seconds.
-- In hash order, as in reset/reset_rows.sql. `is_deferred`: it still waits for its content row. Fewer
-- rows than $1: a trigger swallows the UPDATE. `is_changed` false: a trigger undoes it.
WITH chosen AS MATERIALIZED (
    SELECT short_code, stranded_row.decremented, stranded_row.counts, stranded_row.kept_key
    FROM unnest($1::text[], $2::boolean[], $3::boolean[], $4::text[])
         AS stranded_row (short_code, decremented, counts, kept_key)
    JOIN pastes USING (short_code)
    ORDER BY content_hash
)
UPDATE pastes
SET deletion_status = 'NOT_EXPIRED',
    deletion_initiated_at = NULL,
    claim_id = NULL,
    content_hash = CASE WHEN chosen.decremented THEN NULL ELSE content_hash END,
    pending_s3_key = coalesce(chosen.kept_key, pending_s3_key),
    attempts = least(greatest(attempts, 0) + chosen.counts::int, 32767),
    retry_at = CASE WHEN chosen.counts
                    THEN now() + least((greatest(attempts, 0) + 1) ^ 2, $5::float8) * interval '1 second' END,
    last_error = CASE WHEN chosen.counts
                      THEN 'worker lease expired: in progress without an open claim'
                      ELSE last_error END
FROM chosen
WHERE pastes.short_code = chosen.short_code
RETURNING pastes.short_code, deletion_status = 'DELETION_IN_PROGRESS' AS is_deferred,
          claim_id IS NULL AND (chosen.kept_key IS NULL OR pending_s3_key = chosen.kept_key) AS is_changed
