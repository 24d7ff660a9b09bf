-- Audit: locks content rows whose counts look wrong, in hash order as a decrement does. They are
-- counted by a later statement (content/count_references.sql): this one may have waited for locks, and
-- its snapshot is from before the wait.
-- $1 content hashes, $2 grace period in seconds.
-- Zero rows for a hash: the content row is gone, or is a sentinel.
SELECT content_hash, s3_key, ref_count::bigint AS ref_count,
       coalesce(size_bytes, 0)::bigint AS size_bytes,
       coalesce(created_at > now() - $2::float8 * interval '1 second', false) AS is_fresh
FROM content
WHERE content_hash = ANY ($1)
  AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
ORDER BY content_hash
FOR UPDATE
