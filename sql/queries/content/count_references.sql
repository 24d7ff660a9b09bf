-- Recount: how many rows reference each of these content rows? For counts that cannot be trusted.
-- $1 content hashes, locked.
-- One row for each hash; `refs` 0: it is unreferenced.
-- A row in progress whose claim was decremented has no reference any more, although it keeps its
-- content_hash until it is deleted. That is a row of this claim, of another batch that is not finished
-- yet, or of an ended claim that could not reset it. A row belongs to a claim if their times agree,
-- too: ids can start again.
-- No join, so that there is only one plan: counts by hash, and one walk through the rows in progress,
-- each of which is looked up in a hash table of $1 (`IS TRUE` keeps the planner from turning that into
-- a join).
SELECT content_hash, sum(pastes)::bigint AS refs
FROM (
    SELECT content_hash,
           (SELECT count(*) FROM pastes p
            WHERE p.content_hash = doubtful.content_hash
              -- As in pastes_content_hash_idx.
              AND p.deletion_status <> 'DELETED'
              AND (p.claim_id IS NULL OR p.deletion_status <> 'DELETION_IN_PROGRESS')) AS pastes
    FROM unnest($1::bytea[]) AS doubtful (content_hash)
    UNION ALL
    -- No index leads from a content row to the claimed rows that reference it.
    SELECT p.content_hash, 1
    FROM pastes p
    WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id IS NOT NULL
      AND (p.content_hash IN (SELECT unnest($1::bytea[]))) IS TRUE
      AND (SELECT c.decremented_at FROM deletion_claims c
           WHERE c.id = p.claim_id AND c.claimed_at = p.deletion_initiated_at) IS NULL
) AS referencing
GROUP BY content_hash
