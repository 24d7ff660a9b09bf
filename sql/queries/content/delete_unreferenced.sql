-- Decrement and audit: deletes content rows that no paste references. A later put of the same text
-- inserts a new row with a new key.
-- $1 content hashes.
-- Fewer rows than hashes: a trigger swallows the DELETE.
DELETE FROM content WHERE content_hash = ANY ($1)
