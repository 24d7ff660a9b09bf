-- The row that a claim of one takes, in the same transaction: it is the culprit when that claim
-- fails by the row's own fault (an owner's NOT VALID constraint, say).
-- The conditions are those of claim.sql.
-- $1 low-water mark (NULL = none), $2 short codes already known as impossible.
-- Zero rows: nothing is due.
SELECT short_code
FROM pastes
WHERE deletion_status = 'NOT_EXPIRED'
  AND coalesce(retry_at, expires_at) <= now()
  AND expires_at <= now()
  AND coalesce(retry_at, expires_at) >= coalesce($1::timestamptz, '-infinity')
  AND short_code <> ALL ($2::text[])
ORDER BY coalesce(retry_at, expires_at)
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED
