-- Doctor: the server's version, and whether it accepts writes.
-- Parameters: none. Always one row.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int AS version_num,
       pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only')::boolean AS read_only
