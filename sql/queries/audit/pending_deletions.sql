-- Audit: which of these bodies have a key that somebody is going to delete? In one statement, and so in
-- one snapshot: a decrement moves a key from content to its claim in one transaction.
-- $1 keys.
SELECT body.s3_key, body.content_hash
FROM content body
WHERE body.s3_key = ANY ($1)
  AND body.content_hash <> 'audit:'::bytea || convert_to(body.s3_key, 'UTF8')
  AND (EXISTS (SELECT FROM pastes p
               WHERE p.pending_s3_key = body.s3_key AND p.deletion_status <> 'DELETED')
       OR body.s3_key IN (SELECT unreferenced.s3_key
                          FROM deletion_claims claim, unnest(claim.pending_s3_keys) AS unreferenced (s3_key)
                          WHERE claim.finished_at IS NULL AND claim.reset_at IS NULL))
ORDER BY body.content_hash
