-- Claim, row by row, after none of the rows that are due first could be marked: locks some of those
-- that came due last and never failed. If these fail as well, the cause is not in the rows.
-- $1 maximum rows, $2 their `attempts`.
-- Zero rows: there are none, or other transactions have locked them.
SELECT short_code
FROM pastes
WHERE deletion_status = 'NOT_EXPIRED'
  AND coalesce(retry_at, expires_at) <= now()
  AND expires_at <= now()
  AND attempts = $2::int AND last_error IS NULL
  AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
       OR ((SELECT u.retry_at FROM cleanup_unclaimable u
            WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
ORDER BY coalesce(retry_at, expires_at) DESC
LIMIT $1::int
FOR NO KEY UPDATE SKIP LOCKED
