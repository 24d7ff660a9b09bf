-- Audit: the time, for a store that does not tell its own. In seconds.
SELECT extract(epoch FROM now())::bigint AS now_s
