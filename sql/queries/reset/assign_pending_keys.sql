-- Reset of a decremented claim: each pending_owner takes over the key it owes.
-- $1 claim id, $2 pending_owners, $3 their keys, $4 rows that can be changed (NULL = all).
-- Returns the pending_owners found. Fewer than asked: something else deleted a paste row or has put it back, or
-- a trigger swallows the change; the keys that are left over must go to other rows of the claim.
-- No join: one walk through the claim's rows, a hash table of $2, and the keys by binary search. A join
-- with the arrays may compare each row with each element.
WITH owed AS MATERIALIZED (SELECT jsonb_object($2::text[], $3::text[]) AS s3_keys)
UPDATE pastes
SET pending_s3_key = owed.s3_keys ->> pastes.short_code
FROM owed
WHERE (pastes.short_code IN (SELECT unnest($2::text[]))) IS TRUE
  AND pastes.claim_id = $1
  AND pastes.deletion_status = 'DELETION_IN_PROGRESS'
  AND pastes.deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
  AND ($4::text[] IS NULL OR pastes.short_code IN (SELECT unnest($4::text[])))
-- A trigger may undo it.
RETURNING pastes.short_code, pastes.pending_s3_key = owed.s3_keys ->> pastes.short_code AS is_taken
