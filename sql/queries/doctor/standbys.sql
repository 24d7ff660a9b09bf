-- Doctor: how many standbys does this server have, and does a COMMIT wait for one of them? Running base
-- backups and logical subscribers are not standbys.
-- Without pg_monitor the states are NULL: such a standby is counted, but not as `visible`.
-- Parameters: none. Always one row.
SELECT pg_is_in_recovery() AS is_standby,
       current_setting('synchronous_standby_names') AS wanted,
       count(*) AS standbys,
       count(follower.sync_state) AS visible,
       count(*) FILTER (WHERE follower.sync_state IN ('sync', 'quorum')) AS synchronous
FROM pg_stat_replication follower
WHERE follower.state IS DISTINCT FROM 'backup'
  AND NOT EXISTS (SELECT FROM pg_replication_slots slot
                  WHERE slot.active_pid = follower.pid AND slot.slot_type = 'logical')
