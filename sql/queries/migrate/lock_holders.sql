-- Who keeps a migration step from its lock: the longest transactions that hold one on our tables.
-- Parameters: none. Zero rows: nobody any more, or this user may not see them.
SELECT format('%s is held by pid %s (%s, %s) in a transaction of %s',
              string_agg(DISTINCT l.relation::regclass::text, ', '), a.pid,
              coalesce(nullif(a.application_name, ''), a.backend_type), coalesce(a.state, 'active'),
              date_trunc('second', clock_timestamp() - a.xact_start))
  FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.granted AND a.pid <> pg_backend_pid() AND a.xact_start < now() - interval '1 second'
   AND l.relation IN (to_regclass('pastes'), to_regclass('content'), to_regclass('deletion_claims'))
 GROUP BY a.pid, a.application_name, a.backend_type, a.state, a.xact_start
 ORDER BY a.xact_start
 LIMIT 3;
