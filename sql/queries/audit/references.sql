-- Audit: who suffers? The pastes that hold each of these bodies, and whether it has a content row, in
-- one snapshot: a put brings both at once.
-- $1 content hashes.
SELECT wanted.content_hash, held.pastes, held.live, some_live.short_codes,
       EXISTS (SELECT FROM content c WHERE c.content_hash = wanted.content_hash) AS has_content
FROM unnest($1::bytea[]) AS wanted (content_hash)
CROSS JOIN LATERAL (
    SELECT count(*) AS pastes,
           count(*) FILTER (WHERE p.expires_at IS NULL OR p.expires_at > now()) AS live
    FROM pastes p
    WHERE p.content_hash = wanted.content_hash
      AND p.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')) AS held
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(short_code), '{}') AS short_codes
    FROM (SELECT p.short_code FROM pastes p
          WHERE p.content_hash = wanted.content_hash
            AND p.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
            AND (p.expires_at IS NULL OR p.expires_at > now())
          LIMIT 5) AS first) AS some_live
