-- Audit: which of these keys belong to a content row right now? Sentinels are left out: they have no
-- object and need none.
-- $1 keys.
-- Zero rows for a key: no content row has it.
SELECT s3_key, content_hash
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
