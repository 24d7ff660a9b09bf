-- Decrement: remove the content rows whose last reference goes. Whoever puts the same body again
-- gets a new row with a new key.
-- $1 content hashes.
DELETE FROM content WHERE content_hash = ANY ($1)
