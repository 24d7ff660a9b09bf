-- Throttle: how far behind is the slowest standby? A standby that has replayed everything has no lag,
-- whatever was measured last. Base backups and logical subscribers are not standbys.
-- Without pg_monitor only the pid of a standby is visible: it is counted as hidden.
-- Parameters: none. Always one row; `lag_ms` is NULL when no lag is known.
SELECT count(*) FILTER (WHERE follower.state IS NULL) AS hidden,
       max(CASE WHEN follower.replay_lsn >= pg_current_wal_lsn() THEN 0
                ELSE extract(epoch FROM follower.replay_lag) * 1000 END)::bigint AS lag_ms
FROM pg_stat_replication follower
WHERE (follower.state IS NULL OR follower.state IN ('streaming', 'catchup'))
  AND NOT EXISTS (SELECT FROM pg_replication_slots slot
                  WHERE slot.active_pid = follower.pid AND slot.slot_type = 'logical')
