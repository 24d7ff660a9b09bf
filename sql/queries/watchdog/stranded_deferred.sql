-- Stranded rows: rows that could not be put back because another transaction held their content row locked
-- (the trigger pastes_verify_content), and whose time has come. It costs them no attempt.
-- $1 is not needed here; $2 rows per transaction, $3 rows that this sweep has
-- tried already.
-- Zero rows: none are left, or others hold them.
SELECT short_code, claim_id, false AS decremented, false AS counts, NULL::text AS kept_key
FROM pastes
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id IS NULL
  AND retry_at > deletion_initiated_at AND retry_at <= now()
  AND $1::float8 IS NOT NULL
  AND pastes.short_code <> ALL ($3::text[])
LIMIT $2::int
FOR NO KEY UPDATE SKIP LOCKED
