-- Sweep: corrects times that cannot be right. A row in progress without a claim, or a tombstone, whose
-- time is missing or in the future: the time becomes now. A backoff longer than any setting allows: it
-- starts again now. They were written while the server's clock was ahead, and would hide these rows
-- until that time.
-- Leaves out rows of claims, which are recognised by this time, and 'infinity' as retry_at, which marks
-- a dead letter.
-- $1 rows of each kind per statement, $2 longest backoff in seconds, $3 backoff cap in seconds.
-- If $1 or more rows were changed, there may be more.
WITH ageless AS MATERIALIZED (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND deletion_initiated_at IS NULL
      AND claim_id IS NULL
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), unclaimed AS MATERIALIZED (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
      -- A transaction that has just begun may be younger than this one.
      AND deletion_initiated_at > now() + interval '1 minute'
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), tombstone AS MATERIALIZED (
    SELECT short_code FROM pastes
    WHERE deletion_status = 'DELETED' AND deletion_initiated_at > now() + interval '1 minute'
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), backing_off AS MATERIALIZED (
    SELECT short_code FROM pastes
    WHERE retry_at > now() + $2::float8 * interval '1 second' AND retry_at < 'infinity'
      AND claim_id IS NULL
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pastes
SET deletion_initiated_at = CASE WHEN deletion_status = 'NOT_EXPIRED' THEN deletion_initiated_at
                                 ELSE least(coalesce(deletion_initiated_at, now()), now()) END,
    retry_at = CASE WHEN retry_at > now() + $2::float8 * interval '1 second' AND retry_at < 'infinity'
                    THEN now() + $3::float8 * interval '1 second' ELSE retry_at END
WHERE short_code = ANY (ARRAY(SELECT short_code FROM ageless
                              UNION ALL SELECT short_code FROM unclaimed
                              UNION ALL SELECT short_code FROM tombstone
                              UNION ALL SELECT short_code FROM backing_off))
