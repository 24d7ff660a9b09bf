-- Pause the whole fleet. Workers finish what they hold and stop; runs that start later stop at once.
-- $1 reason.
-- Returns since when it is paused: a second pause only changes the reason.
UPDATE cleanup_fleet
SET paused_at = coalesce(paused_at, now()), pause_reason = $1
RETURNING paused_at
