-- Expired pastes that no run can claim, because they are in progress without an open claim, and that a
-- sweep could not reset: another transaction has locked them or their content row, or a trigger refuses
-- it. The conditions are those of the searches in watchdog/stranded_*.sql, without SKIP LOCKED; a paste
-- that waits for its content row counts before its retry_at, too.
-- $1 stuck_after in seconds, $2 highest number to count to.
-- Always one row: how many, and the first short code (NULL = none).
WITH RECURSIVE in_progress (claim_id) AS (
    (SELECT claim_id FROM pastes
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NOT NULL
     ORDER BY claim_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.claim_id FROM pastes p
            WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id > in_progress.claim_id
            ORDER BY p.claim_id LIMIT 1)
    FROM in_progress
    WHERE in_progress.claim_id IS NOT NULL
), unclaimed AS (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL AND expires_at <= now()
      AND (deletion_initiated_at < now() - $1::float8 * interval '1 second'
           OR (retry_at > deletion_initiated_at AND retry_at < 'infinity'
               AND starts_with(last_error, 'waits for its content row')))
    LIMIT $2::bigint
), of_ended_claims AS (
    SELECT pastes.short_code
    FROM pastes
    LEFT JOIN deletion_claims ended
        ON ended.id = pastes.claim_id AND ended.claimed_at = pastes.deletion_initiated_at
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND expires_at <= now()
      AND claim_id = ANY (ARRAY(
          SELECT in_progress.claim_id FROM in_progress
          WHERE NOT EXISTS (SELECT FROM deletion_claims c
                            WHERE c.id = in_progress.claim_id
                              AND c.finished_at IS NULL AND c.reset_at IS NULL)))
      AND (ended.id IS NOT NULL
           OR coalesce(deletion_initiated_at, '-infinity') < now() - $1::float8 * interval '1 second')
    LIMIT $2::bigint
)
SELECT count(*) AS pastes, min(short_code) AS first
FROM (SELECT short_code FROM unclaimed UNION ALL SELECT short_code FROM of_ended_claims) AS stranded
