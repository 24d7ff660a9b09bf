-- Reset, last statement: the claim is over; every later write of its worker is fenced off.
-- $1 claim id, $2 reason, $3 pastes that became dead letters.
UPDATE deletion_claims SET reset_at = now(), reset_reason = $2, dead_letters = coalesce(dead_letters, 0) + $3
WHERE id = $1
