-- Reset, last statement: the claim is over; every later write of its worker is fenced off.
-- $1 claim id, $2 reason.
UPDATE deletion_claims SET reset_at = now(), reset_reason = $2 WHERE id = $1
