-- Claim, careful, after none of the rows that are due first could be marked: some of those that came due
-- last and never failed. If they cannot be marked, or deleted, either, it is not the rows.
-- $1 how many, $2 their `attempts`.
SELECT short_code
FROM pastes
WHERE deletion_status = 'NOT_EXPIRED'
  AND coalesce(retry_at, expires_at) <= now()
  AND expires_at <= now()
  AND attempts = $2::int AND last_error IS NULL
  AND short_code NOT IN (SELECT short_code FROM cleanup_unclaimable WHERE retry_at > now())
ORDER BY coalesce(retry_at, expires_at) DESC
LIMIT $1::int
FOR NO KEY UPDATE SKIP LOCKED
