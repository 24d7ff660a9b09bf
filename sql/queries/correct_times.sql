-- Orphans, first statement: rows in progress that do not say since when. Their time starts now, so
-- that they too are reset one day.
-- $1 rows per statement.
UPDATE pastes SET deletion_initiated_at = now()
WHERE short_code IN (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND deletion_initiated_at IS NULL
      AND claim_id IS NULL
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED)
