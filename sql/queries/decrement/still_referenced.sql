-- Decrement, cross-check: which of these content rows does another paste still need? A statement of its
-- own, after the locks: the statement that waited for them still has its old snapshot.
-- $1 content hashes that would lose their last reference.
-- Zero rows for a hash: it is unreferenced. Claimed rows do not count: they are being deleted, and one
-- that is reset verifies its content first (the trigger pastes_verify_content).
-- One paste is enough, and no join: each hash is looked up in the one index that fits the condition,
-- whatever the statistics are. A join read all rows in progress without a claim once for each hash
-- (30,000 of them: 40 times slower), and all pastes that share the content (a million: 1.5 s).
SELECT content_hash
FROM unnest($1::bytea[]) AS last (content_hash)
WHERE (SELECT true FROM pastes p
       WHERE p.content_hash = last.content_hash
         -- As in pastes_content_hash_idx: also rows in progress that something else marked.
         AND p.deletion_status <> 'DELETED'
         AND (p.claim_id IS NULL OR p.deletion_status <> 'DELETION_IN_PROGRESS')
       LIMIT 1)
