-- Claim, row by row, after Postgres refused to mark a whole batch: locks the rows that claim/claim.sql
-- would take. Same conditions and same class.
-- $1 batch size, $2 highest class that may be claimed now, $3 low-water mark (NULL = none).
-- Zero rows: nothing is due, or other transactions have locked all of it.
WITH due AS MATERIALIZED (
    SELECT short_code,
           CASE WHEN last_error IS NULL OR starts_with(last_error, 'worker lease expired')
                THEN greatest(attempts, 0) ELSE 0 END AS class
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED'
      AND coalesce(retry_at, expires_at) <= now()
      AND expires_at <= now()
      AND coalesce(retry_at, expires_at) >= coalesce($3::timestamptz, '-infinity')
      AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
           OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
    ORDER BY coalesce(retry_at, expires_at)
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), ranked AS (
    SELECT short_code, class, row_number() OVER () AS place
    FROM due
    WHERE class = (SELECT class FROM due LIMIT 1) AND class <= $2::int
)
SELECT short_code
FROM ranked
WHERE place <= greatest(1, $1::int / (10 ^ least(class, 9))::bigint)
