-- Ends the pause.
-- Parameters: none. Zero rows: the fleet was not paused.
UPDATE cleanup_fleet SET paused_at = NULL, pause_reason = NULL WHERE paused_at IS NOT NULL
