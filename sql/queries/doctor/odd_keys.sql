-- Doctor: content keys that are not in canonical form, such as a//b. A store that normalises keys has one
-- object for all spellings of a key.
-- $1 highest number to count to.
-- Always one row: how many, and the first key (NULL = none). Sentinels have no object and do not count.
SELECT count(*) AS keys, min(s3_key) AS first
FROM (SELECT s3_key FROM content
      -- As in content_odd_key_idx, which is empty almost everywhere.
      WHERE (s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)' OR octet_length(s3_key) <> length(s3_key))
        AND cleanup_canonical_key(s3_key) <> s3_key
        AND content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
      LIMIT $1::bigint) AS odd
