-- Purge, first statement: locks tombstones past retention.tombstones, except those that another
-- transaction has locked. Only the fleet's own: a DELETED row that another program wrote may still be
-- counted in ref_count, or have a pending object delete.
-- $1 retention in seconds, $2 rows per transaction, $3 rows that could not be purged in this tick.
-- Zero rows: none are left, or other transactions have locked them.
SELECT short_code FROM pastes
WHERE deletion_status = 'DELETED' AND content_hash IS NULL AND pending_s3_key IS NULL
  AND deletion_initiated_at < now() - $1::float8 * interval '1 second'
  AND short_code <> ALL ($3::text[])
ORDER BY deletion_initiated_at
LIMIT $2::int
FOR UPDATE SKIP LOCKED
