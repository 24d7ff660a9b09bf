-- Reset rows that are in progress without an open claim (something else marked them), by the
-- seeds' rule: deletion_initiated_at older than stuck_after.
-- $1 stuck_after in seconds, $2 rows per statement, $3 backoff cap in seconds.
-- Fewer rows than $2: none are left.
WITH stuck AS MATERIALIZED (
    SELECT p.short_code
    FROM pastes p
    WHERE p.deletion_status = 'DELETION_IN_PROGRESS'
      AND p.deletion_initiated_at < now() - $1::float8 * interval '1 second'
      AND NOT EXISTS (SELECT FROM deletion_claims c
                      WHERE c.id = p.claim_id AND c.finished_at IS NULL AND c.reset_at IS NULL)
    ORDER BY p.deletion_initiated_at
    LIMIT $2::int
    FOR NO KEY UPDATE OF p SKIP LOCKED
)
UPDATE pastes
SET deletion_status = 'NOT_EXPIRED',
    deletion_initiated_at = NULL,
    claim_id = NULL,
    attempts = least(attempts + 1, 32767),
    retry_at = now() + least((attempts + 1) ^ 2, $3::float8) * interval '1 second',
    last_error = 'worker lease expired: in progress without an open claim'
FROM stuck
WHERE pastes.short_code = stuck.short_code
