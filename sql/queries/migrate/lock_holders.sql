-- Which transactions keep a migration step from its lock? The longest ones that have a lock on the
-- fleet's tables.
-- Parameters: none. Zero rows: there are none any more, or this role may not see them.
SELECT format('%s is locked by pid %s (%s, %s), whose transaction has been open for %s',
              string_agg(DISTINCT l.relation::regclass::text, ', '), a.pid,
              coalesce(nullif(a.application_name, ''), a.backend_type), coalesce(a.state, 'active'),
              date_trunc('second', clock_timestamp() - a.xact_start))
  FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.granted AND a.pid <> pg_backend_pid() AND a.xact_start < now() - interval '1 second'
   AND l.relation IN (to_regclass('pastes'), to_regclass('content'), to_regclass('deletion_claims'))
 GROUP BY a.pid, a.application_name, a.backend_type, a.state, a.xact_start
 ORDER BY a.xact_start
 LIMIT 3;
