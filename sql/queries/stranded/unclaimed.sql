-- Stranded rows: rows in progress without a claim (another program marked them) whose
-- deletion_initiated_at is older than stuck_after.
-- $1 stuck_after in seconds, $2 rows per transaction, $3 rows that this sweep has already tried.
-- Zero rows: none are left, or other transactions have locked them.
SELECT short_code, claim_id::bigint, false AS decremented, true AS counts, NULL::text AS kept_key
FROM pastes
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id IS NULL
  AND deletion_initiated_at < now() - $1::float8 * interval '1 second'
  -- The others wait for their content row: see stranded/deferred.sql.
  AND (retry_at > deletion_initiated_at AND retry_at < 'infinity'
       AND starts_with(last_error, 'waits for its content row')) IS NOT TRUE
  AND pastes.short_code <> ALL ($3::text[])
ORDER BY deletion_initiated_at
LIMIT $2::int
FOR NO KEY UPDATE SKIP LOCKED
