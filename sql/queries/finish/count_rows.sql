-- Finish, last statement: records what this claim deleted, for history and metrics, and clears its keys:
-- the objects are deleted, and the keys would be most of the history (75 KB a claim, measured).
-- $1 claim id, $2 rows deleted, $3 finish ms, $4 failed pastes, $5 dead letters among them, $6 ages at
-- deletion; $7 pending owners and $8 their keys: objects that still exist and whose keys no row could
-- take over (see reset/end_claim.sql).
UPDATE deletion_claims
SET rows_deleted = $2, finish_ms = $3, pending_owners = nullif($7::text[], '{}'),
    pending_s3_keys = nullif($8::text[], '{}'),
    rows_failed = coalesce(rows_failed, 0) + $4, dead_letters = coalesce(dead_letters, 0) + $5,
    ages = $6::text::jsonb
WHERE id = $1
