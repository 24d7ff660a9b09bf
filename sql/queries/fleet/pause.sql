-- Pauses the whole fleet. Workers finish their open claims and stop; runs that start later stop at once.
-- $1 reason.
-- Returns since when the fleet has been paused: a second pause changes only the reason.
UPDATE cleanup_fleet
SET paused_at = coalesce(paused_at, now()), pause_reason = $1
RETURNING paused_at
