-- Audit: which of these keys are bodies right now? Sentinels have no object, and need none.
-- $1 keys.
SELECT s3_key, content_hash
FROM content
WHERE s3_key = ANY ($1)
  AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
