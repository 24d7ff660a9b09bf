-- Claim, row by row, last statement: returns what was marked, with the columns of claim/claim.sql, and
-- stores the number of rows in the claim.
-- $1 claim id.
-- Zero rows: nothing could be marked.
WITH marked AS MATERIALIZED (
    SELECT claim_id::bigint, short_code, content_hash, pending_s3_key,
           least(greatest(attempts, 0), 32767)::smallint AS attempts,
           last_error IS NOT NULL AND NOT starts_with(last_error, 'worker lease expired')
               AS failed_before,
           coalesce(retry_at, expires_at) AS due_at, expires_at, deletion_initiated_at,
           deletion_initiated_at = now() AS is_timed
    FROM pastes
    WHERE claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS'
), counted AS (
    UPDATE deletion_claims SET rows_claimed = (SELECT count(*) FROM marked) WHERE id = $1
)
SELECT * FROM marked
