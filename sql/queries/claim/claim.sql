-- Claim: mark due pastes and insert the claim row that is their lease, in one statement, so that
-- the fleet never holds a row without a lease.
-- $1 worker uuid, $2 batch size, $3 low-water mark (NULL = none), $4 highest class that may be
-- claimed now (a busy worker leaves the rows that must run alone for later), $5 whether there are
-- rows in cleanup_unclaimable at all.
-- One class per batch, that of the row that is due first; a tenth the size for each attempt, so that a
-- row that kills its worker ends up alone. The class is `attempts` of a row whose worker died, and 0
-- of one that failed by itself: that one harms nobody beside it, and a thousand requeued dead letters
-- would run one by one.
-- Fewer than `picked`, or one of NULLs: a trigger of pastes swallows the UPDATE; not `is_timed`: one
-- changes deletion_initiated_at, by which a claim knows its rows.
-- Zero rows: nothing is due, or others hold all of it, or the first due row must run alone.
WITH due AS MATERIALIZED (
    -- Bounded before anything is filtered: looking for so many rows of one class would walk the
    -- whole backlog when the class has fewer (measured: 3 s for 300 such rows before 879,000).
    -- The limit is a plain parameter: a computed one is planned as "a tenth of the table".
    SELECT short_code,
           CASE WHEN last_error IS NULL OR starts_with(last_error, 'worker lease expired')
                THEN greatest(attempts, 0) ELSE 0 END AS class
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED'
      AND coalesce(retry_at, expires_at) <= now()
      -- A paste whose owner extended it while it was backing off must not go.
      AND expires_at <= now()
      -- Skips the dead index entries of earlier claims, which a long transaction elsewhere keeps.
      AND coalesce(retry_at, expires_at) >= coalesce($3::timestamptz, '-infinity')
      AND (NOT $5::boolean
           OR short_code NOT IN (SELECT short_code FROM cleanup_unclaimable WHERE retry_at > now()))
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
    RETURNING claim_id, short_code, content_hash, pending_s3_key,
              least(greatest(attempts, 0), 32767)::smallint AS attempts,
              -- By itself, and not with its worker.
              last_error IS NOT NULL AND NOT starts_with(last_error, 'worker lease expired')
                  AS failed_before,
              coalesce(retry_at, expires_at) AS due_at, expires_at, deletion_initiated_at
)
SELECT marked.*, picked.rows AS picked, deletion_initiated_at = now() AS is_timed
FROM (SELECT count(*) AS rows FROM batch) AS picked
LEFT JOIN marked ON true
WHERE picked.rows > 0
