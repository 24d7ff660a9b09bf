-- Requeues dead letters: due now, for one more attempt. `attempts` and `last_error` stay, so that a
-- row that killed its workers runs alone again; a row that failed by itself runs in a full batch.
-- $1 short codes (NULL = any), $2 part of last_error (NULL = any), $3 max attempts, $4 rows per
-- statement.
-- Fewer rows than $4: none are left.
WITH chosen AS MATERIALIZED (
    SELECT short_code
    FROM pastes
    WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'
      AND ($1::text[] IS NULL OR short_code = ANY ($1))
      AND ($2::text IS NULL OR position($2 IN last_error) > 0)
    LIMIT $4::int
    FOR NO KEY UPDATE
)
UPDATE pastes
SET retry_at = now(), attempts = least(attempts, $3::int - 1)
FROM chosen
WHERE pastes.short_code = chosen.short_code
RETURNING pastes.short_code
