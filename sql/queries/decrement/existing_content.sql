-- Decrement, row by row: which of these content rows exist? Of those that could not be locked, these
-- are locked by another transaction; the rest are missing.
-- $1 content hashes.
SELECT content_hash FROM content WHERE content_hash = ANY ($1)
