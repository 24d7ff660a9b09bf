-- Decrement, last statement: the claim remembers which objects must go and which row owes each, so
-- that whatever happens to this worker, a reset can hand the debt on.
-- $1 claim id, $2 pending_owners (short codes), $3 their keys, $4 bytes; for the totals: $5 counts that were
-- wrong, $6 pastes that were failed, $7 dead letters among them.
UPDATE deletion_claims
SET pending_owners = $2, pending_s3_keys = $3, bytes_freed = $4,
    drift = $5, rows_failed = $6, dead_letters = $7
WHERE id = $1
