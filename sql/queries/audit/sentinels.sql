-- Audit: which of these keys belong to a sentinel? Their objects may be deleted: no other row can have
-- the key. The locks give the transaction an id, so that its COMMIT waits for a synchronous standby,
-- and with it for the sentinel of an earlier audit that ended right after inserting it (as in
-- claim/read.sql).
-- $1 keys.
-- Zero rows for a key: it has no sentinel.
SELECT s3_key
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash = 'audit:'::bytea || convert_to(s3_key, 'UTF8')
ORDER BY content_hash
FOR UPDATE
