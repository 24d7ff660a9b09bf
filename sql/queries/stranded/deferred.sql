-- Stranded rows: rows that could not be reset because another transaction had locked their content row
-- (the trigger pastes_verify_content), and whose retry_at has passed. It does not count as an attempt. A
-- row that another program marked while it was backing off may have such a retry_at, too, but not the
-- error of the trigger.
-- $1 not used, but the same parameters as the other searches; $2 rows per transaction, $3 rows that this
-- sweep has already tried.
-- Zero rows: none are left, or other transactions have locked them.
SELECT short_code, claim_id::bigint, false AS decremented, false AS counts, NULL::text AS kept_key
FROM pastes
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id IS NULL
  AND retry_at > deletion_initiated_at AND retry_at <= now()
  AND starts_with(last_error, 'waits for its content row')
  AND $1::float8 IS NOT NULL
  AND pastes.short_code <> ALL ($3::text[])
LIMIT $2::int
FOR NO KEY UPDATE SKIP LOCKED
