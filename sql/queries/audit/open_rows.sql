-- Audit: opens a cursor over the keys of content, in the order in which S3 lists: by bytes, whatever
-- the database's collation is.
-- $1 after this key, $2 up to and including this key (NULL = to the end), $3 prefix.
-- WITH HOLD keeps the result on the server after the transaction ends, so that no snapshot stays open
-- while the bucket is listed. Listing takes hours; an open snapshot would hold back every vacuum and
-- slow down claims. The result is therefore old: every finding is checked again.
DECLARE audit_rows NO SCROLL CURSOR WITH HOLD FOR
SELECT s3_key, content_hash = 'audit:'::bytea || convert_to(s3_key, 'UTF8') AS is_sentinel
FROM content
WHERE s3_key COLLATE "C" > $1::text
  AND ($2::text IS NULL OR s3_key COLLATE "C" <= $2::text)
  AND starts_with(s3_key, $3::text)
ORDER BY s3_key COLLATE "C"
