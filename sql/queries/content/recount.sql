-- Decrement and audit: repairs drift. Stores the recount that was made under the content row's lock. A
-- created_at in the future becomes now, so that the next decrement need not count again: the count now
-- includes the references of every claim.
-- $1 content hashes, $2 number of references of each.
-- Fewer rows than $1: a trigger swallows the UPDATE. `is_changed` false: a trigger undoes it.
UPDATE content
SET ref_count = recount.refs,
    created_at = CASE WHEN created_at > clock_timestamp() THEN clock_timestamp() ELSE created_at END
FROM unnest($1::bytea[], $2::bigint[]) AS recount (content_hash, refs)
WHERE content.content_hash = recount.content_hash
RETURNING content.content_hash, content.ref_count = recount.refs AS is_changed
