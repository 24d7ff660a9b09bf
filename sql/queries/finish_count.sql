-- Finish, last statement: what this claim deleted, for history and metrics.
-- The keys are gone; kept, they would be most of the history (75 KB a claim, measured).
-- $1 claim id, $2 rows deleted, $3 finish ms.
UPDATE deletion_claims
SET rows_deleted = $2, finish_ms = $3, heirs = NULL, doomed_keys = NULL
WHERE id = $1
