-- Release, recount: how many rows hold each of these bodies, whose count turned out to be too low?
-- $1 content hashes, locked.
-- Zero rows for a hash: nobody holds it.
-- A row in progress whose claim was released (this one, or a batch on its way out) holds nothing any
-- more, although it keeps its content_hash until it is gone.
SELECT content_hash, count(*) AS holders
FROM (
    SELECT content_hash FROM pastes
    WHERE content_hash = ANY ($1) AND deletion_status = 'NOT_EXPIRED'
    UNION ALL
    -- No index leads from a body to these; all rows in progress are looked at.
    SELECT p.content_hash
    FROM pastes p
    LEFT JOIN deletion_claims c ON c.id = p.claim_id
    WHERE p.content_hash = ANY ($1)
      AND p.deletion_status = 'DELETION_IN_PROGRESS'
      AND NOT (c.released_at IS NOT NULL AND c.reset_at IS NULL)
) AS holder
GROUP BY content_hash
