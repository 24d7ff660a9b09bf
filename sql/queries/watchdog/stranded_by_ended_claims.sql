-- Stranded rows, the thorough look: rows in progress whose claim is not open. It ended while another
-- transaction held them, or a trigger refused to change them; or somebody has ended or deleted it by
-- hand. Goes from claim to claim along pastes_claim_idx; under a long transaction that is a walk over
-- all dead entries of the night, so not at every tick.
-- $1 stuck_after in seconds, $2 rows per transaction, $3 rows that this sweep has
-- tried already.
-- Zero rows: none are left, or others hold them.
WITH RECURSIVE held (claim_id) AS (
    (SELECT claim_id FROM pastes
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NOT NULL
     ORDER BY claim_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.claim_id FROM pastes p
            WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id > held.claim_id
            ORDER BY p.claim_id LIMIT 1)
    FROM held
    WHERE held.claim_id IS NOT NULL
)
SELECT pastes.short_code, pastes.claim_id,
       -- It could not be put back when its claim ended, so its object's key stayed there.
       ended.pending_s3_keys[array_position(ended.pending_owners, pastes.short_code)] AS kept_key,
       -- A row that its claim has let go of holds no reference, and must not get it back. It is of
       -- that claim only if the claim's time is its own, too: ids can start again.
       coalesce(ended.decremented_at IS NOT NULL, false) AS decremented,
       -- Of a claim that is known to have ended, nobody was at work on it.
       ended.id IS NULL AS counts
FROM pastes
LEFT JOIN deletion_claims ended
    ON ended.id = pastes.claim_id AND ended.claimed_at = pastes.deletion_initiated_at
WHERE deletion_status = 'DELETION_IN_PROGRESS'
  AND claim_id = ANY (ARRAY(
      SELECT held.claim_id FROM held
      WHERE NOT EXISTS (SELECT FROM deletion_claims c
                        WHERE c.id = held.claim_id
                          AND c.finished_at IS NULL AND c.reset_at IS NULL)))
  -- Whoever held a claim that has ended is fenced off: nobody needs to be waited for.
  AND (ended.id IS NOT NULL
       OR coalesce(deletion_initiated_at, '-infinity') < now() - $1::float8 * interval '1 second'
       -- From when the clock was ahead. Without its claim its worker can change nothing, either.
       OR deletion_initiated_at > now() + interval '1 minute')
  AND pastes.short_code <> ALL ($3::text[])
LIMIT $2::int
FOR NO KEY UPDATE OF pastes SKIP LOCKED
