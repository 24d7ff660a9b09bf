-- Audit: which of these content rows have a key with a pending object delete? One statement has one
-- snapshot: a decrement moves a key from content to its claim in one transaction.
-- $1 keys.
-- Zero rows for a key: no delete of its object is pending.
SELECT content.s3_key, content.content_hash
FROM content
WHERE content.s3_key = ANY ($1)
  AND content.content_hash <> 'audit:'::bytea || convert_to(content.s3_key, 'UTF8')
  AND (EXISTS (SELECT FROM pastes p
               WHERE p.pending_s3_key = content.s3_key AND p.deletion_status <> 'DELETED')
       OR content.s3_key IN (SELECT pending.s3_key
                          FROM deletion_claims claim, unnest(claim.pending_s3_keys) AS pending (s3_key)
                          WHERE claim.finished_at IS NULL AND claim.reset_at IS NULL))
ORDER BY content.content_hash
