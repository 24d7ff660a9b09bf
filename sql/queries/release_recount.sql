-- Release: repair drift. The count is the recount made under the content row's lock.
-- $1 content hashes, $2 how many rows really hold each.
UPDATE content
SET ref_count = recount.holders
FROM unnest($1::bytea[], $2::bigint[]) AS recount (content_hash, holders)
WHERE content.content_hash = recount.content_hash
