-- Decrement: subtracts this batch's references from content that other pastes still reference. The
-- content rows are locked.
-- $1 content hashes, $2 references to subtract from each.
UPDATE content
SET ref_count = content.ref_count - batch.refs
FROM unnest($1::bytea[], $2::int[]) AS batch (content_hash, refs)
WHERE content.content_hash = batch.content_hash
