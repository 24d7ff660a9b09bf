-- Claim: marks due pastes and inserts the claim row that is their lease, in one statement, so that no
-- row is ever in progress without a lease.
-- $1 worker uuid, $2 batch size, $3 low-water mark (NULL = none), $4 highest class that may be claimed
-- now (a busy worker leaves rows that must run alone for later), $5 whether any rows are
-- unclaimable now.
-- A batch has rows of one class, that of the row that is due first. Its size is divided by ten for
-- each attempt, so that a row that kills its worker ends up alone. The class is `attempts` for a row
-- whose worker died, and 0 for a row that failed by itself: that row does no harm to others in its
-- batch, and a thousand requeued dead letters would otherwise run one by one.
-- Fewer rows than `picked`, or one row of NULLs: a trigger on pastes swallows the UPDATE. `is_marked`
-- false: a trigger undoes it. `is_timed` false: a trigger changes deletion_initiated_at, by which a
-- claim recognises its rows.
-- Zero rows: nothing is due, other transactions have locked all of it, or the row that is due first
-- must run alone.
WITH due AS MATERIALIZED (
    -- Bounded before the class is filtered: searching for $2 rows of one class would walk the
    -- whole backlog if the class has fewer (measured: 3 s for 300 such rows before 879,000).
    -- The limit is a plain parameter: a computed one is planned as "a tenth of the table".
    SELECT short_code,
           CASE WHEN last_error IS NULL OR starts_with(last_error, 'worker lease expired')
                THEN greatest(attempts, 0) ELSE 0 END AS class
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED'
      AND coalesce(retry_at, expires_at) <= now()
      -- A paste that was extended while it was backing off must not be deleted.
      AND expires_at <= now()
      -- Skips the dead index entries of earlier claims, which a long transaction keeps alive.
      AND coalesce(retry_at, expires_at) >= coalesce($3::timestamptz, '-infinity')
      -- Each row is looked up by its key: a list (NOT IN) is hashed only while it fits into work_mem,
      -- and otherwise read again for every row. The collation is that of the key: with another one,
      -- which the column of pastes may have, its index could not be used.
      AND (NOT $5::boolean
           OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
    ORDER BY coalesce(retry_at, expires_at)
    LIMIT $2::int
    FOR NO KEY UPDATE SKIP LOCKED
), first AS MATERIALIZED (
    SELECT class FROM due LIMIT 1
), batch AS MATERIALIZED (
    SELECT short_code
    FROM (SELECT short_code, class, row_number() OVER () AS place
          FROM due
          WHERE class = (SELECT class FROM first WHERE class <= $4::int)) AS ranked
    WHERE place <= greatest(1, $2::int / (10 ^ least(class, 9))::bigint)
), claim AS (
    INSERT INTO deletion_claims (worker, rows_claimed)
    SELECT $1, count(*) FROM batch HAVING count(*) > 0
    RETURNING id
), marked AS (
    UPDATE pastes
    SET deletion_status = 'DELETION_IN_PROGRESS',
        deletion_initiated_at = now(),
        claim_id = (SELECT id FROM claim)
    -- An array, not a join: one walk through the primary key, in its order.
    WHERE short_code = ANY (ARRAY(SELECT short_code FROM batch))
    RETURNING claim_id::bigint, short_code, content_hash, pending_s3_key,
              least(greatest(attempts, 0), 32767)::smallint AS attempts,
              -- The row itself failed; its worker did not die.
              last_error IS NOT NULL AND NOT starts_with(last_error, 'worker lease expired')
                  AS failed_before,
              coalesce(retry_at, expires_at) AS due_at, expires_at, deletion_initiated_at,
              claim_id = (SELECT id FROM claim) AND deletion_status = 'DELETION_IN_PROGRESS'
                  AS is_marked
)
SELECT marked.*, picked.rows AS picked, deletion_initiated_at = now() AS is_timed
FROM (SELECT count(*) AS rows FROM batch) AS picked
LEFT JOIN marked ON true
WHERE picked.rows > 0
