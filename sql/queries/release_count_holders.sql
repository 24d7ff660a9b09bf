-- Release, recount: how many rows hold each of these bodies, whose count cannot be trusted?
-- $1 content hashes, locked.
-- Zero rows for a hash: nobody holds it.
-- A row in progress whose claim was released (this one, or a batch on its way out, or one that has
-- ended and could not put it back) holds nothing any more, although it keeps its content_hash until
-- it is gone. It is of that claim if the claim's time is its own, too: ids can start again.
SELECT content_hash, count(*) AS holders
FROM (
    SELECT content_hash FROM pastes
    WHERE content_hash = ANY ($1) AND deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
    UNION ALL
    -- No index leads from a body to these: all rows in progress are looked at.
    SELECT content_hash
    FROM unnest($1::bytea[]) AS doubtful (content_hash)
    JOIN pastes p USING (content_hash)
    LEFT JOIN deletion_claims c ON c.id = p.claim_id AND c.claimed_at = p.deletion_initiated_at
    WHERE p.deletion_status = 'DELETION_IN_PROGRESS'
      AND c.released_at IS NULL
) AS holder
GROUP BY content_hash
