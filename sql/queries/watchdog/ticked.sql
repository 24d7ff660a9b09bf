-- Watchdog, at every tick: that it was here. Whoever says that a watchdog resets something looks here.
UPDATE cleanup_fleet SET watchdog_at = now()
