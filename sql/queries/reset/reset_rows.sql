-- Reset: sets the pastes of a claim back to NOT_EXPIRED.
-- $1 claim id, $2 decremented (its rows have no reference any more), $3 counts as an attempt (the lease
-- expired) or not (released), $4 last_error (NULL = keep), $5 number of attempts that makes a dead
-- letter (NULL = never: only a row that failed alone becomes one), $6 backoff cap in seconds, $7 class
-- (see claim/claim.sql) from which a row runs alone in its process, $8 short codes (NULL = all of the
-- claim), $9 true if they are to be tried last, because every paste of the claim failed.
-- By the claim's id and its time, as in finish/delete_rows.sql.
-- In hash order: the trigger pastes_verify_content locks their content rows one by one, and a decrement
-- locks its own in that order, too, so that the two seldom wait for each other. A row whose content row
-- cannot be locked stays in progress without a claim (`is_deferred`).
-- Fewer rows than expected: a trigger swallows the UPDATE. `is_changed` false: a trigger undoes it, and
-- the row still has its claim.
WITH chosen AS MATERIALIZED (
    SELECT short_code
    FROM pastes
    WHERE claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS'
      AND deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
      AND ($8::text[] IS NULL OR short_code IN (SELECT unnest($8::text[])))
    ORDER BY content_hash
    FOR NO KEY UPDATE
)
UPDATE pastes
SET deletion_status = 'NOT_EXPIRED',
    deletion_initiated_at = NULL,
    claim_id = NULL,
    content_hash = CASE WHEN $2::boolean THEN NULL ELSE content_hash END,
    attempts = CASE WHEN $3::boolean THEN least(greatest(attempts, 0) + 1, 32767) ELSE attempts END,
    retry_at = CASE
        WHEN $9::boolean THEN now() + $6::float8 * interval '1 second'
        WHEN NOT $3::boolean THEN retry_at
        -- A row that failed by itself shared its batch: which row killed the worker is unknown.
        WHEN attempts >= $7::int AND attempts + 1 >= $5::int
             AND (last_error IS NULL OR starts_with(last_error, 'worker lease expired')) THEN 'infinity'
        ELSE now() + least((greatest(attempts, 0) + 1) ^ 2, $6::float8) * interval '1 second'
    END,
    last_error = coalesce($4, last_error)
FROM chosen
WHERE pastes.short_code = chosen.short_code
RETURNING retry_at = 'infinity' AS dead_letter, deletion_status = 'DELETION_IN_PROGRESS' AS is_deferred,
          claim_id IS NULL AS is_changed
