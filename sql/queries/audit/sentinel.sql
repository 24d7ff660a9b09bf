-- Audit, before an orphan is deleted: inserts a sentinel row that reserves its key permanently. Waits
-- for a writer that has stored this key and not committed yet; a later writer gets a unique violation,
-- and uploads again under another key.
-- $1 keys.
-- Inserts nothing for a key that a content row already has; the caller checks which row that is.
-- created_at is given because an adopted table may have no default for it.
INSERT INTO content (content_hash, s3_key, size_bytes, ref_count, created_at)
SELECT 'audit:'::bytea || convert_to(s3_key, 'UTF8'), s3_key, 0, 0, clock_timestamp()
FROM unnest($1::text[]) AS orphan (s3_key)
ORDER BY s3_key COLLATE "C"
ON CONFLICT (s3_key) DO NOTHING
