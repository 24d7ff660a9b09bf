-- Claim, row by row: inserts the claim row, before its pastes are marked in the same transaction.
-- $1 worker uuid.
-- Always one row: the claim's id.
INSERT INTO deletion_claims (worker, rows_claimed) VALUES ($1, 0) RETURNING id
