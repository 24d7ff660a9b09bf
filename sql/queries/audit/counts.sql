-- Audit: the next bodies with their counts, and how many pastes that are not in progress hold each.
-- $1 after this hash, $2 how many, $3 prefix.
-- Zero rows: that was the last.
SELECT content_hash, s3_key, ref_count::bigint AS ref_count,
       content_hash = 'audit:'::bytea || convert_to(s3_key, 'UTF8') AS is_sentinel,
       NOT starts_with(s3_key, $3::text) AS is_outside,
       (SELECT count(*) FROM pastes p
        WHERE p.content_hash = content.content_hash
          AND p.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')) AS refs
FROM content
WHERE content_hash > $1
ORDER BY content_hash
LIMIT $2::bigint
