-- Which of these keys may be another spelling of a content row's key? Some stores keep `/a/b`, `a//b` and
-- `a\b` as the one object `a/b`: deleting the one would delete the other.
-- $1 keys, $2 keys whose rows do not count, because they go, too.
-- Zero rows for a key: no content row has another spelling of it. Sentinels have no object, so their
-- spellings do not matter.
-- Two lookups for each key: a row whose key is not canonical is in content_odd_key_idx, whose
-- predicate is repeated literally; any other row has the canonical key itself.
WITH asked AS MATERIALIZED (
    SELECT s3_key, cleanup_canonical_key(s3_key) AS canonical
    FROM unnest($1::text[]) AS asked (s3_key)
)
SELECT asked.s3_key, other.s3_key AS other_key, other.content_hash
FROM asked
CROSS JOIN LATERAL (
    SELECT body.s3_key, body.content_hash
    FROM content body
    WHERE cleanup_canonical_key(body.s3_key) = asked.canonical
      AND (body.s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)'
           OR octet_length(body.s3_key) <> length(body.s3_key))
      AND body.s3_key <> asked.s3_key
      AND body.s3_key <> ALL ($2::text[])
      AND body.content_hash <> 'audit:'::bytea || convert_to(body.s3_key, 'UTF8')
    UNION ALL
    SELECT body.s3_key, body.content_hash
    FROM content body
    WHERE body.s3_key = asked.canonical
      AND asked.canonical <> asked.s3_key
      AND body.s3_key <> ALL ($2::text[])
      AND body.content_hash <> 'audit:'::bytea || convert_to(body.s3_key, 'UTF8')
    LIMIT 1) AS other
