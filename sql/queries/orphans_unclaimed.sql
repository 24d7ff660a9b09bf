-- Orphans: rows in progress without a claim (something else marked them), by the seeds' rule:
-- deletion_initiated_at older than stuck_after.
-- $1 stuck_after in seconds, $2 rows per transaction.
-- Zero rows: none are left, or others hold them.
SELECT short_code
FROM pastes
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id IS NULL
  AND deletion_initiated_at < now() - $1::float8 * interval '1 second'
ORDER BY deletion_initiated_at
LIMIT $2::int
FOR NO KEY UPDATE SKIP LOCKED
