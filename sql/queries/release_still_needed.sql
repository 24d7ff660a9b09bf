-- Release, cross-check: which of these bodies does another paste still need? A statement of its own,
-- after the locks: the one that waited for them still judges by its old snapshot.
-- $1 content hashes that would lose their last reference.
-- Zero rows for a hash: nobody needs it. Rows in progress do not: they are on their way out, and one
-- that comes back looks for its body first (the trigger pastes_return).
SELECT DISTINCT content_hash
FROM pastes
WHERE content_hash = ANY ($1)
  AND deletion_status = 'NOT_EXPIRED'
