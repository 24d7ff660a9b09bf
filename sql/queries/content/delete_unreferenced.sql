-- Decrement: deletes the content rows that lose their last reference. A later put of the same text
-- inserts a new row with a new key.
-- $1 content hashes.
DELETE FROM content WHERE content_hash = ANY ($1)
