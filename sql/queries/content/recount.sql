-- Decrement: repair drift. The count is the recount made under the content row's lock. A time of creation
-- in the future goes with it, so that the next decrement need not count again: from now on the count has
-- the references of every claim in it.
-- $1 content hashes, $2 how many rows really hold each.
UPDATE content
SET ref_count = recount.holders,
    created_at = CASE WHEN created_at > clock_timestamp() THEN clock_timestamp() ELSE created_at END
FROM unnest($1::bytea[], $2::bigint[]) AS recount (content_hash, holders)
WHERE content.content_hash = recount.content_hash
