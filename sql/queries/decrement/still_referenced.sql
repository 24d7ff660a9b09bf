-- Decrement, cross-check: which of these bodies does another paste still need? A statement of its own,
-- after the locks: the one that waited for them still judges by its old snapshot.
-- $1 content hashes that would lose their last reference.
-- Zero rows for a hash: nobody needs it. Rows that the fleet has claimed do not: they are on their
-- way out, and one that comes back looks for its body first (the trigger pastes_verify_content).
-- One paste is enough, and no join: each hash is looked up in the one index that fits the condition,
-- whatever the statistics say. A join read all rows in progress without a claim once for each hash
-- (30,000 of them: 40 times slower), and all pastes that share a body (a million: 1.5 s).
SELECT content_hash
FROM unnest($1::bytea[]) AS last (content_hash)
WHERE (SELECT true FROM pastes p
       WHERE p.content_hash = last.content_hash
         -- As in pastes_content_hash_idx: also rows in progress that something else marked.
         AND p.deletion_status <> 'DELETED'
         AND (p.claim_id IS NULL OR p.deletion_status <> 'DELETION_IN_PROGRESS')
       LIMIT 1)
