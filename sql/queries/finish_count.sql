-- Finish, last statement: what this claim deleted, for history and metrics.
-- $1 claim id, $2 rows deleted, $3 finish ms.
UPDATE deletion_claims SET rows_deleted = $2, finish_ms = $3 WHERE id = $1
