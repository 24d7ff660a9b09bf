-- Safety brake: of the pastes that are due first, how many have no content row?
-- $1 maximum pastes.
-- Always one row.
SELECT count(*) AS pastes, count(*) FILTER (WHERE content.content_hash IS NULL) AS missing
FROM (SELECT content_hash
      FROM pastes
      WHERE deletion_status = 'NOT_EXPIRED'
        AND coalesce(retry_at, expires_at) <= now()
        AND expires_at <= now()
      ORDER BY coalesce(retry_at, expires_at)
      LIMIT $1::int) AS next
LEFT JOIN content USING (content_hash)
WHERE next.content_hash IS NOT NULL
