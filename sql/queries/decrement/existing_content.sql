-- Decrement, careful: which of these content rows are there? Those that could not be locked are another
-- transaction's; the others are missing.
-- $1 content hashes.
SELECT content_hash FROM content WHERE content_hash = ANY ($1)
