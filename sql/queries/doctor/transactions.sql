-- Doctor: long transactions, which keep vacuum from removing the rows that runs have deleted.
-- $1 minimum age in seconds.
-- Always one row; without pg_monitor the transactions of other roles are not visible.
SELECT count(*) AS open,
       coalesce(max(age_s), 0)::float8 AS oldest_s,
       (array_agg(who ORDER BY age_s DESC))[1] AS who,
       (array_agg(end_it ORDER BY age_s DESC))[1] AS end_it
FROM (
    SELECT extract(epoch FROM now() - xact_start) AS age_s,
           format('pid %s (%s)', pid, coalesce(nullif(application_name, ''), usename)) AS who,
           format('SELECT pg_terminate_backend(%s)', pid) AS end_it
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    UNION ALL
    SELECT extract(epoch FROM now() - prepared), format('the prepared transaction %L', gid),
           format('ROLLBACK PREPARED %L', gid)
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS transactions
WHERE age_s >= $1::float8
