-- Audit: which pastes are affected? Returns the pastes that reference each of these hashes, and
-- whether a content row exists, in one snapshot: a put inserts both at once.
-- $1 content hashes.
-- Always one row for each hash; `short_codes` names up to five live pastes.
SELECT wanted.content_hash, referencing.pastes, referencing.live, some_live.short_codes,
       EXISTS (SELECT FROM content c WHERE c.content_hash = wanted.content_hash) AS has_content
FROM unnest($1::bytea[]) AS wanted (content_hash)
CROSS JOIN LATERAL (
    SELECT count(*) AS pastes,
           count(*) FILTER (WHERE p.expires_at IS NULL OR p.expires_at > now()) AS live
    FROM pastes p
    WHERE p.content_hash = wanted.content_hash
      AND p.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')) AS referencing
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(short_code), '{}') AS short_codes
    FROM (SELECT p.short_code FROM pastes p
          WHERE p.content_hash = wanted.content_hash
            AND p.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
            AND (p.expires_at IS NULL OR p.expires_at > now())
          LIMIT 5) AS first) AS some_live
