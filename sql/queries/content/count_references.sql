-- Decrement, recount: how many rows hold each of these bodies, whose count cannot be trusted?
-- $1 content hashes, locked.
-- One row for each hash; 0: nobody holds it.
-- A row in progress whose claim was decremented (this one, or a batch on its way out, or one that has
-- ended and could not put it back) holds nothing any more, although it keeps its content_hash until
-- it is gone. It is of that claim if the claim's time is its own, too: ids can start again.
-- No join, so that there is one plan: counts by hash, and one walk through the rows in progress, each of
-- which is looked up in a hash table of $1 (`IS TRUE` keeps the planner from making a join of it).
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
    -- No index leads from a body to the rows that are claimed.
    SELECT p.content_hash, 1
    FROM pastes p
    WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id IS NOT NULL
      AND (p.content_hash IN (SELECT unnest($1::bytea[]))) IS TRUE
      AND (SELECT c.decremented_at FROM deletion_claims c
           WHERE c.id = p.claim_id AND c.claimed_at = p.deletion_initiated_at) IS NULL
) AS holder
GROUP BY content_hash
