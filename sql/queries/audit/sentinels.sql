-- Audit: which of these keys does a sentinel keep? Those objects may go: no other row can have the
-- key. The locks give the transaction an id, so that its COMMIT waits for a synchronous standby, and
-- with it for a sentinel of an earlier audit that ended right after it (as in claim/read.sql).
-- $1 keys.
SELECT s3_key
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash = 'audit:'::bytea || convert_to(s3_key, 'UTF8')
ORDER BY content_hash
FOR UPDATE
