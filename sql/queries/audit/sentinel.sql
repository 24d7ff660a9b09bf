-- Audit, before an orphan is deleted: a row that keeps its key for good. Waits for a writer who has
-- stored that key and not committed yet; a later one gets a unique violation, and uploads again.
-- $1 keys.
-- Inserts nothing for a key that a row has by then: look whose it is.
-- created_at is given: a table that was adopted may have no default for it.
INSERT INTO content (content_hash, s3_key, size_bytes, ref_count, created_at)
SELECT 'audit:'::bytea || convert_to(s3_key, 'UTF8'), s3_key, 0, 0, clock_timestamp()
FROM unnest($1::text[]) AS orphan (s3_key)
ORDER BY s3_key COLLATE "C"
ON CONFLICT (s3_key) DO NOTHING
