-- Counts the pastes that are due, up to a cap. Walks the index: some seconds for a million.
-- $1 cap.
-- Always one row.
SELECT count(*) AS due
FROM (SELECT
      FROM pastes
      WHERE deletion_status = 'NOT_EXPIRED'
        AND coalesce(retry_at, expires_at) <= now()
        AND expires_at <= now()
        AND short_code NOT IN (SELECT short_code FROM cleanup_unclaimable WHERE retry_at > now())
      LIMIT $1::bigint) AS capped
