-- Brake: of the pastes that come next, how many have content that is not there?
-- $1 how many to look at.
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
