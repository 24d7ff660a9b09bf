-- Release, last statement: the claim remembers which objects must go and which row owes each, so
-- that whatever happens to this worker, a reset can hand the debt on.
-- $1 claim id, $2 heirs (short codes), $3 their keys, $4 bytes.
UPDATE deletion_claims
SET heirs = $2, doomed_keys = $3, bytes_freed = $4
WHERE id = $1
