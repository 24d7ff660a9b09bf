-- Tries to become the only session that migrates this database; never waits. A waiting
-- pg_advisory_lock() would keep a snapshot that the lock holder's CREATE INDEX CONCURRENTLY waits for:
-- a deadlock.
-- Parameters: none. Always one row: whether this session now has the lock.
SELECT pg_try_advisory_lock(hashtextextended('paste-cleanup migrate', 0));
