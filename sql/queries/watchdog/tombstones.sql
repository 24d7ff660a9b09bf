-- Purge, first statement: tombstones past their retention that nobody else has locked. Only the fleet's
-- own: a DELETED row that somebody else made may still be counted by its body, or owe an object.
-- $1 retention in seconds, $2 rows per transaction, $3 those that could not be purged in this tick.
SELECT short_code FROM pastes
WHERE deletion_status = 'DELETED' AND content_hash IS NULL AND pending_s3_key IS NULL
  AND deletion_initiated_at < now() - $1::float8 * interval '1 second'
  AND short_code <> ALL ($3::text[])
ORDER BY deletion_initiated_at
LIMIT $2::int
FOR UPDATE SKIP LOCKED
