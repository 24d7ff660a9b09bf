-- Stranded rows, the thorough search: rows in progress whose claim is not open. It ended while another
-- transaction had them locked, or a trigger refused to change them; or an operator ended or deleted it by
-- hand. Goes from claim to claim along pastes_claim_idx. With a long transaction open that walks over
-- all dead entries of the night, so it is not done at every tick.
-- $1 stuck_after in seconds, $2 rows per transaction, $3 rows that this sweep has already tried.
-- Zero rows: none are left, or other transactions have locked them.
WITH RECURSIVE in_progress (claim_id) AS (
    (SELECT claim_id FROM pastes
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NOT NULL
     ORDER BY claim_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.claim_id FROM pastes p
            WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id > in_progress.claim_id
            ORDER BY p.claim_id LIMIT 1)
    FROM in_progress
    WHERE in_progress.claim_id IS NOT NULL
)
SELECT pastes.short_code, pastes.claim_id::bigint,
       -- The row could not be reset when its claim ended, so the key of its object stayed there.
       ended.pending_s3_keys[array_position(ended.pending_owners, pastes.short_code)] AS kept_key,
       -- A row whose claim was decremented has no reference any more, and must not get it again.
       -- It belongs to that claim only if their times agree, too: ids can start again.
       coalesce(ended.decremented_at IS NOT NULL, false) AS decremented,
       -- If its claim is known to have ended, no worker died with this row.
       ended.id IS NULL AS counts
FROM pastes
LEFT JOIN deletion_claims ended
    ON ended.id = pastes.claim_id AND ended.claimed_at = pastes.deletion_initiated_at
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id = ANY (ARRAY(
      SELECT in_progress.claim_id FROM in_progress
      WHERE NOT EXISTS (SELECT FROM deletion_claims c
                        WHERE c.id = in_progress.claim_id
                          AND c.finished_at IS NULL AND c.reset_at IS NULL)))
  -- The worker of an ended claim is fenced off: there is nothing to wait for.
  AND (ended.id IS NOT NULL
       OR coalesce(deletion_initiated_at, '-infinity') < now() - $1::float8 * interval '1 second'
       -- Written while the clock was ahead. Without the claim its worker cannot change anything.
       OR deletion_initiated_at > now() + interval '1 minute')
  AND pastes.short_code <> ALL ($3::text[])
LIMIT $2::int
FOR NO KEY UPDATE OF pastes SKIP LOCKED
