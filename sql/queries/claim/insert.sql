-- Claim, careful: the claim row, before its pastes are marked in the same transaction.
-- $1 worker uuid.
INSERT INTO deletion_claims (worker, rows_claimed) VALUES ($1, 0) RETURNING id
