-- Delete objects: which of these keys does a content row use (again)? By the contract no key is used
-- twice, but a backup may have restored a content row.
-- $1 keys of pending object deletes.
-- Zero rows for a key: its object may be deleted. Sentinels are left out: they have no object.
SELECT s3_key
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
