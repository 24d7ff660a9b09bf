-- Delete objects: which of these keys does content use (again)? By the contract no key is used twice, but a
-- content row may have come back from a backup.
-- $1 keys that rows still have to delete. Zero rows for a key: it may go. Sentinels have no object.
SELECT s3_key
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
