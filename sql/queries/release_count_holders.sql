-- Release, cross-check: who else still holds these bodies? A statement of its own, after the
-- locks: the one that waited for them still judges by its old snapshot.
-- $1 content hashes that would lose their last reference.
-- Zero rows for a hash: nobody else holds it.
-- A row whose claim was released (this one, or a batch on its way out) holds nothing any more,
-- although it keeps its content_hash until it is gone.
SELECT p.content_hash, count(*) AS holders
FROM pastes p
LEFT JOIN deletion_claims c ON c.id = p.claim_id
WHERE p.content_hash = ANY ($1)
  AND p.deletion_status <> 'DELETED'
  AND NOT (p.deletion_status = 'DELETION_IN_PROGRESS' AND c.released_at IS NOT NULL
           AND c.reset_at IS NULL)
GROUP BY p.content_hash
