-- Records that a watchdog has completed a tick. Status and explain read it to predict when a claim will
-- be reset.
-- Parameters: none.
UPDATE cleanup_fleet SET watchdog_at = now()
