-- Claim: mark due pastes and insert the claim row that is their lease, in one statement, so that
-- the fleet never holds a row without a lease.
-- $1 worker uuid, $2 batch size, $3 low-water mark (NULL = none), $4 highest `attempts` that may
-- be claimed now (a busy worker leaves the rows that must run alone for later).
-- One `attempts` class per batch, the class of the row that is due first; a tenth the size for
-- each attempt, so that a row that kills its worker ends up alone.
-- Zero rows: nothing is due, or others hold all of it, or the first due row must run alone.
WITH first AS MATERIALIZED (
    SELECT attempts
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED'
      AND coalesce(retry_at, expires_at) <= now()
      -- A paste whose owner extended it while it was backing off must not go.
      AND expires_at <= now()
      -- Skips the dead index entries of earlier claims, which a long transaction elsewhere keeps.
      AND coalesce(retry_at, expires_at) >= coalesce($3::timestamptz, '-infinity')
    ORDER BY coalesce(retry_at, expires_at)
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    -- The limit is a plain parameter on purpose: a computed one is planned as "a tenth of the
    -- table", which is a sequential scan.
    SELECT short_code, attempts
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED'
      AND coalesce(retry_at, expires_at) <= now()
      AND expires_at <= now()
      AND coalesce(retry_at, expires_at) >= coalesce($3::timestamptz, '-infinity')
      AND attempts = (SELECT attempts FROM first WHERE attempts <= $4::int)
    ORDER BY coalesce(retry_at, expires_at)
    LIMIT $2::int
    FOR NO KEY UPDATE SKIP LOCKED
), batch AS MATERIALIZED (
    SELECT short_code
    FROM (SELECT short_code, attempts, row_number() OVER () AS place FROM due) AS ranked
    WHERE place <= greatest(1, $2::int / (10 ^ least(attempts, 9))::bigint)
), claim AS (
    INSERT INTO deletion_claims (worker, rows_claimed)
    SELECT $1, count(*) FROM batch HAVING count(*) > 0
    RETURNING id
)
UPDATE pastes
SET deletion_status = 'DELETION_IN_PROGRESS',
    deletion_initiated_at = now(),
    claim_id = claim.id
FROM batch, claim
WHERE pastes.short_code = batch.short_code
RETURNING pastes.claim_id, pastes.short_code, pastes.content_hash, pastes.doomed_key,
          pastes.attempts, coalesce(pastes.retry_at, pastes.expires_at) AS due_at
