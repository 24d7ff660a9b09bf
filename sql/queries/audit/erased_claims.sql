-- Audit: has the fleet ever erased a paste in this database? Answers from claims not pruned yet.
-- Parameters: none. Always one row.
SELECT EXISTS (SELECT FROM deletion_claims WHERE rows_deleted > 0) AS has_erased
