-- Reset, last statement: ends the claim; every later write of its worker is fenced off.
-- $1 claim id, $2 reason, $3 pastes that became dead letters; $4 pending owners and $5 their keys, which
-- no row could take over. These stay in the claim until a sweep resets their rows
-- (stranded/remove_taken_keys.sql); a claim that still has keys is never pruned.
-- Always one row: how many rows still have the claim's id (`stranded`).
UPDATE deletion_claims
SET reset_at = now(), reset_reason = $2, dead_letters = coalesce(dead_letters, 0) + $3,
    pending_owners = nullif($4::text[], '{}'), pending_s3_keys = nullif($5::text[], '{}')
WHERE id = $1
RETURNING (SELECT count(*) FROM pastes
           WHERE claim_id = $1::bigint AND deletion_status = 'DELETION_IN_PROGRESS'
             AND deletion_initiated_at = deletion_claims.claimed_at) AS stranded
