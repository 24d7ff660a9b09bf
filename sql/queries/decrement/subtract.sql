-- Decrement: subtracts this batch's references from content that other pastes still reference. The
-- content rows are locked.
-- $1 content hashes, $2 references to subtract from each, $3 the count that each has afterwards.
-- Fewer rows than $1: a trigger swallows the UPDATE. `is_changed` false: a trigger undoes it.
-- No WITH: it would refuse a table with a rule for UPDATE.
UPDATE content
SET ref_count = content.ref_count - batch.refs
FROM unnest($1::bytea[], $2::int[], $3::bigint[]) AS batch (content_hash, refs, expected)
WHERE content.content_hash = batch.content_hash
RETURNING content.ref_count = batch.expected AS is_changed
