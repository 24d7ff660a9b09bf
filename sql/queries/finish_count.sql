-- Finish, last statement: what this claim deleted, for history and metrics.
-- The keys are gone; kept, they would be most of the history (75 KB a claim, measured).
-- $1 claim id, $2 rows deleted, $3 finish ms, $4 pastes that were detached, $5 dead letters among
-- them, $6 ages at deletion, $7 keys of objects that are still there and have no row left to
-- remember them (NULL = none), $8 what a claim that must keep such keys is marked with.
UPDATE deletion_claims
SET rows_deleted = $2, finish_ms = $3, heirs = NULL, doomed_keys = $7::text[],
    reset_reason = CASE WHEN $7::text[] IS NOT NULL THEN $8::text ELSE reset_reason END,
    rows_failed = coalesce(rows_failed, 0) + $4, dead_letters = coalesce(dead_letters, 0) + $5,
    ages = $6::text::jsonb
WHERE id = $1
