-- Checks in one snapshot what must hold at any moment. No parameters. Each row is the text of a
-- violation; zero rows mean that there are none.
WITH counted AS (
    -- Without sentinels, which only keep the keys of orphans that an audit has deleted.
    SELECT * FROM content WHERE content_hash <> 'audit:'::bytea || convert_to(s3_key, 'UTF8')
), recount AS (
    SELECT p.content_hash, count(*) AS reference_count
    FROM pastes p
    WHERE p.content_hash IS NOT NULL AND p.deletion_status <> 'DELETED'
      AND NOT EXISTS (SELECT FROM deletion_claims c
                      WHERE c.id = p.claim_id AND c.decremented_at IS NOT NULL)
    GROUP BY p.content_hash
)
SELECT format('content %s has ref_count %s, but %s references',
              encode(content_hash, 'hex'), coalesce(c.ref_count, 0), coalesce(r.reference_count, 0))
FROM counted c FULL JOIN recount r USING (content_hash)
WHERE c.ref_count IS DISTINCT FROM r.reference_count
UNION ALL
-- Not by now(), which is older than the snapshot if this statement waited for a lock: a claim in between
-- takes pastes that have expired meanwhile. clock_timestamp() is read after the snapshot was taken. A
-- claim in the snapshot is older than both, so what it took has expired.
SELECT format('live paste %s is %s and has %s', short_code, deletion_status,
              CASE WHEN content_hash IS NULL THEN 'no content' ELSE 'its content' END)
FROM pastes
WHERE (deletion_status <> 'NOT_EXPIRED' OR content_hash IS NULL)
  -- The time of its claim, if it has one: least() skips NULL.
  AND (expires_at IS NULL OR expires_at > least(deletion_initiated_at, clock_timestamp()))
UNION ALL
SELECT format('claim %s was finished although it had been reset', id)
FROM deletion_claims
WHERE finished_at IS NOT NULL AND reset_at IS NOT NULL
UNION ALL
SELECT format('object %s of counted content is pending deletion by paste %s', c.s3_key,
              p.short_code)
FROM pastes p JOIN counted c ON c.s3_key = p.pending_s3_key
UNION ALL
SELECT format('object %s of counted content is pending deletion by claim %s', c.s3_key, d.id)
FROM deletion_claims d CROSS JOIN unnest(d.pending_s3_keys) AS pending (s3_key)
     JOIN counted c ON c.s3_key = pending.s3_key
UNION ALL
SELECT format('%s pastes were stored, but %s are left and %s were deleted', stored, remaining, deleted)
FROM (SELECT (SELECT count(*) FROM chaos_pastes) AS stored,
             (SELECT count(*) FROM pastes WHERE deletion_status <> 'DELETED') AS remaining,
             (SELECT coalesce(sum(rows_deleted), 0) FROM deletion_claims) AS deleted) AS sums
WHERE stored <> remaining + deleted
UNION ALL
SELECT what FROM chaos_violations
