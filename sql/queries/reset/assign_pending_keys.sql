-- Reset of a decremented claim: each pending owner takes over the key of its pending object delete.
-- $1 claim id, $2 pending owners, $3 their keys, $4 rows that can be changed (NULL = all).
-- Returns the owners found. Fewer than $2: something else deleted or reset the paste, or a trigger
-- swallows the UPDATE; `is_taken` false: a trigger undoes it. The keys of those must go to other rows
-- of the claim.
-- No join: one walk through the claim's rows, a hash table of $2, and the keys by binary search. A join
-- with the arrays may compare each row with each element.
WITH pending AS MATERIALIZED (SELECT jsonb_object($2::text[], $3::text[]) AS s3_keys)
UPDATE pastes
SET pending_s3_key = pending.s3_keys ->> pastes.short_code
FROM pending
WHERE (pastes.short_code IN (SELECT unnest($2::text[]))) IS TRUE
  AND pastes.claim_id = $1::bigint
  AND pastes.deletion_status = 'DELETION_IN_PROGRESS'
  AND pastes.deletion_initiated_at = (SELECT claimed_at FROM deletion_claims WHERE id = $1)
  AND ($4::text[] IS NULL OR pastes.short_code IN (SELECT unnest($4::text[])))
RETURNING pastes.short_code, pastes.pending_s3_key = pending.s3_keys ->> pastes.short_code AS is_taken
