-- Release, cross-check: which of these bodies does another paste still need? A statement of its own,
-- after the locks: the one that waited for them still judges by its old snapshot.
-- $1 content hashes that would lose their last reference.
-- Zero rows for a hash: nobody needs it. Rows that the fleet has claimed do not: they are on their
-- way out, and one that comes back looks for its body first (the trigger pastes_return).
SELECT content_hash
FROM pastes
WHERE content_hash = ANY ($1)
  -- As in pastes_content_hash_idx.
  AND deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
UNION
-- Rows that something else marked, expired or not. Few, if any.
SELECT content_hash
FROM unnest($1::bytea[]) AS last (content_hash)
JOIN pastes p USING (content_hash)
WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.claim_id IS NULL
