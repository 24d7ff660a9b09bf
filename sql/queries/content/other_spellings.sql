-- Which of these keys may be another spelling of a content row's key? Some stores keep `/a/b`, `a//b`
-- and `a\b` as the one object `a/b`: deleting one of them would delete the others.
-- $1 keys, $2 keys whose content rows do not count, because they are deleted as well.
-- Zero rows for a key: no content row has another spelling of it. Sentinels have no object, so their
-- spellings do not matter.
-- Two lookups for each key: a row whose key is not canonical is in content_odd_key_idx, whose
-- predicate is repeated literally; any other row has the canonical key itself.
WITH given AS MATERIALIZED (
    SELECT s3_key, cleanup_canonical_key(s3_key) AS canonical
    FROM unnest($1::text[]) AS given (s3_key)
)
SELECT given.s3_key, other.s3_key AS other_key, other.content_hash
FROM given
CROSS JOIN LATERAL (
    SELECT content.s3_key, content.content_hash
    FROM content
    WHERE cleanup_canonical_key(content.s3_key) = given.canonical
      AND (content.s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)'
           OR octet_length(content.s3_key) <> length(content.s3_key))
      AND content.s3_key <> given.s3_key
      AND content.s3_key <> ALL ($2::text[])
      AND content.content_hash <> 'audit:'::bytea || convert_to(content.s3_key, 'UTF8')
    UNION ALL
    SELECT content.s3_key, content.content_hash
    FROM content
    WHERE content.s3_key = given.canonical
      AND given.canonical <> given.s3_key
      AND content.s3_key <> ALL ($2::text[])
      AND content.content_hash <> 'audit:'::bytea || convert_to(content.s3_key, 'UTF8')
    LIMIT 1) AS other
