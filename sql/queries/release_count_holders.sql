-- Release, recount: how many rows hold each of these bodies, whose count cannot be trusted?
-- $1 content hashes, locked.
-- Zero rows for a hash: nobody holds it.
-- A row in progress whose claim was released (this one, or a batch on its way out) holds nothing any
-- more, although it keeps its content_hash until it is gone.
SELECT content_hash, count(*) AS holders
FROM (
    SELECT content_hash FROM pastes
    WHERE content_hash = ANY ($1) AND deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
    UNION ALL
    -- No index leads from a body to these: all rows in progress are looked at.
    SELECT content_hash
    FROM unnest($1::bytea[]) AS doubtful (content_hash)
    JOIN pastes p USING (content_hash)
    LEFT JOIN deletion_claims c ON c.id = p.claim_id
    WHERE p.deletion_status = 'DELETION_IN_PROGRESS'
      AND NOT (c.released_at IS NOT NULL AND c.reset_at IS NULL)
) AS holder
GROUP BY content_hash
