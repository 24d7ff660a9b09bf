-- Tries to become the one session that migrates this database; never waits.
-- A waiting pg_advisory_lock() would keep a snapshot that the holder's CREATE INDEX CONCURRENTLY
-- waits for: a deadlock.
-- Parameters: none. Always one row: whether this session has the lock now.
SELECT pg_try_advisory_lock(hashtextextended('paste-cleanup migrate', 0));
