-- Values of settings in this session, times in milliseconds.
-- $1 names. One row for each that the server knows.
SELECT name, setting FROM pg_settings WHERE name = ANY ($1)
