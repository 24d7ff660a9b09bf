-- Doctor: is autovacuum on for the fleet's tables, what is the server's time, is the session encrypted?
-- Parameters: none. Always one row; `neglected` is NULL when autovacuum is on for all tables.
SELECT current_setting('autovacuum')::boolean AS autovacuum,
       (SELECT string_agg(c.relname, ', ' ORDER BY c.relname)
        FROM pg_class c, pg_options_to_table(c.reloptions) o
        WHERE c.oid IN (to_regclass('pastes'), to_regclass('content'), to_regclass('deletion_claims'))
          AND o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean) AS neglected,
       extract(epoch FROM clock_timestamp())::float8 AS clock,
       coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS tls,
       -- A Unix socket, or the same machine.
       inet_server_addr() IS NULL OR inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1'
           AS is_local,
       host(inet_server_addr()) AS address
