-- Decrement, row by row: which of these content rows exist? Executed for the hashes that could not
-- be locked: a row that exists is locked by another transaction, and one that does not is missing.
-- $1 content hashes.
-- Zero rows: all of them are missing.
SELECT content_hash FROM content WHERE content_hash = ANY ($1)
