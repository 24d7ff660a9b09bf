-- Who owes this object? Asked by the audit, which must not call a debt an orphan.

-- step: index pastes_doomed_key_idx: the row that owes S3 the deletion of a key
-- Holds the few rows of the cold path; a claim of rows that owe nothing never touches it.
CREATE INDEX CONCURRENTLY IF NOT EXISTS pastes_doomed_key_idx
    ON pastes (doomed_key) WHERE doomed_key IS NOT NULL;
