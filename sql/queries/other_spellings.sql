-- Which of these keys have another spelling in content? In a store that normalises keys both are one
-- object: deleting the one would delete the other.
-- $1 keys that are to be deleted.
-- Zero rows for a key: none. The keys in $1 themselves do not count: they all go.
SELECT doomed.s3_key, other.s3_key AS other_key
FROM unnest($1::text[]) AS doomed (s3_key)
CROSS JOIN LATERAL (
    (SELECT c.s3_key FROM content c
     WHERE cleanup_canonical_key(c.s3_key) = cleanup_canonical_key(doomed.s3_key)
       -- As in content_odd_key_idx.
       AND (c.s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)' OR octet_length(c.s3_key) <> length(c.s3_key))
       AND c.s3_key <> ALL ($1)
       AND c.content_hash <> 'audit:'::bytea || convert_to(c.s3_key, 'UTF8')
     LIMIT 1)
    UNION ALL
    (SELECT c.s3_key FROM content c
     WHERE c.s3_key = cleanup_canonical_key(doomed.s3_key) AND c.s3_key <> ALL ($1)
       AND c.content_hash <> 'audit:'::bytea || convert_to(c.s3_key, 'UTF8')
     LIMIT 1)
) AS other
