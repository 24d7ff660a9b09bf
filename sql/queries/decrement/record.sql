-- Decrement, last statement: records in the claim which objects must be deleted, and for which paste
-- each, so that a reset can pass them on to other rows whatever happens to this worker.
-- $1 claim id, $2 pending owners (short codes), $3 their keys, $4 bytes; for the totals: $5 wrong
-- counts, $6 failed pastes, $7 dead letters among them.
UPDATE deletion_claims
SET pending_owners = $2, pending_s3_keys = $3, bytes_freed = $4,
    drift = $5, rows_failed = $6, dead_letters = $7
WHERE id = $1
