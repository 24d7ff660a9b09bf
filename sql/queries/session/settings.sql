-- What some settings are in this session, times in milliseconds.
-- $1 their names. A row for each that the server knows.
SELECT name, setting FROM pg_settings WHERE name = ANY ($1)
