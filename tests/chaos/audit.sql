-- What must hold at any moment, in one snapshot; each row is a violation in words.
WITH bodies AS (
    -- Without the rows that only keep the keys of orphans that an audit has deleted.
    SELECT * FROM content WHERE content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
), held AS (
    SELECT p.content_hash, count(*) AS holders
    FROM pastes p
    WHERE p.content_hash IS NOT NULL AND p.deletion_status <> 'DELETED'
      AND NOT EXISTS (SELECT FROM deletion_claims c
                      WHERE c.id = p.claim_id AND c.decremented_at IS NOT NULL)
    GROUP BY p.content_hash
)
SELECT format('body %s counts %s, is held by %s',
              encode(content_hash, 'hex'), coalesce(c.ref_count, 0), coalesce(h.holders, 0))
FROM bodies c FULL JOIN held h USING (content_hash)
WHERE c.ref_count IS DISTINCT FROM h.holders
UNION ALL
SELECT format('live paste %s is %s and holds %s', short_code, deletion_status,
              CASE WHEN content_hash IS NULL THEN 'no body' ELSE 'its body' END)
FROM pastes
WHERE (expires_at IS NULL OR expires_at > now())
  AND (deletion_status <> 'NOT_EXPIRED' OR content_hash IS NULL)
UNION ALL
SELECT format('claim %s was finished although it had been reset', id)
FROM deletion_claims
WHERE finished_at IS NOT NULL AND reset_at IS NOT NULL
UNION ALL
SELECT format('the object %s of a counted body is owed by paste %s', c.s3_key, p.short_code)
FROM pastes p JOIN bodies c ON c.s3_key = p.pending_s3_key
UNION ALL
SELECT format('the object %s of a counted body is unreferenced by claim %s', c.s3_key, d.id)
FROM deletion_claims d CROSS JOIN unnest(d.pending_s3_keys) AS unreferenced (s3_key)
     JOIN bodies c ON c.s3_key = unreferenced.s3_key
UNION ALL
SELECT format('%s pastes were stored, %s are left, and %s were deleted', stored, remaining, deleted)
FROM (SELECT (SELECT count(*) FROM chaos_pastes) AS stored,
             (SELECT count(*) FROM pastes WHERE deletion_status <> 'DELETED') AS remaining,
             (SELECT coalesce(sum(rows_deleted), 0) FROM deletion_claims) AS deleted) AS sums
WHERE stored <> remaining + deleted
UNION ALL
SELECT what FROM chaos_violations
