-- Audit: the time in seconds since 1970, for a store that does not send its own.
-- Parameters: none. Always one row.
SELECT extract(epoch FROM now())::bigint AS now_s
