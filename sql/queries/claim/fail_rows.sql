-- Fail: takes rows that a step cannot process out of their claim, inside the decrement or finish
-- transaction. They back off. A row error counts as an attempt, and the last attempt makes the row a
-- dead letter.
-- $1 claim id, $2 short codes, $3 errors, $4 keys of objects still to be deleted (NULL = none), $5 true
-- if the batch was decremented (its rows have no reference any more), $6 max attempts, $7 backoff cap
-- in seconds, $8 whether each is a row error.
-- Fewer rows than $2: something else deleted a paste, or a trigger swallows the UPDATE. `is_changed`
-- false: a trigger undoes it.
-- No join, for the reason given in reset/assign_pending_keys.sql.
WITH bad AS MATERIALIZED (
    SELECT jsonb_object($2::text[], $3::text[]) AS errors,
           jsonb_object($2::text[], $4::text[]) AS s3_keys,
           jsonb_object($2::text[], $8::boolean[]::text[]) AS row_errors
)
UPDATE pastes
SET deletion_status = 'NOT_EXPIRED',
    deletion_initiated_at = NULL,
    claim_id = NULL,
    content_hash = CASE WHEN $5::boolean THEN NULL ELSE pastes.content_hash END,
    pending_s3_key = CASE WHEN $5::boolean THEN bad.s3_keys ->> pastes.short_code ELSE pastes.pending_s3_key END,
    attempts = least(greatest(pastes.attempts, 0) + (bad.row_errors ->> pastes.short_code)::boolean::int, 32767),
    retry_at = CASE
        WHEN NOT (bad.row_errors ->> pastes.short_code)::boolean THEN now() + $7::float8 * interval '1 second'
        WHEN pastes.attempts + 1 >= $6::int THEN 'infinity'
        ELSE now() + least((greatest(pastes.attempts, 0) + 1) ^ 2, $7) * interval '1 second'
    END,
    last_error = bad.errors ->> pastes.short_code
FROM bad
WHERE (pastes.short_code IN (SELECT unnest($2::text[]))) IS TRUE
  AND pastes.claim_id = $1::bigint
  AND pastes.deletion_status = 'DELETION_IN_PROGRESS'
RETURNING pastes.short_code, coalesce(pastes.retry_at = 'infinity', false) AS dead_letter,
          pastes.claim_id IS NULL
              AND (NOT $5::boolean OR pastes.pending_s3_key IS NOT DISTINCT FROM bad.s3_keys ->> pastes.short_code)
              AS is_changed
