-- Counts the pastes that are due, up to a cap. Walks the index: some seconds for a million.
-- $1 cap.
-- Always one row.
SELECT count(*) AS due
FROM (SELECT
      FROM pastes
      WHERE deletion_status = 'NOT_EXPIRED'
        AND coalesce(retry_at, expires_at) <= now()
        AND expires_at <= now()
        AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
             OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                  WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
      LIMIT $1::bigint) AS capped
