-- Releases the lock of migrate/try_lock.sql.
-- Parameters: none. Always one row; false means that this session did not have it.
SELECT pg_advisory_unlock(hashtextextended('paste-cleanup migrate', 0));
