-- Audit: has the fleet erased a paste in this database? By the claims that are not pruned yet.
SELECT EXISTS (SELECT FROM deletion_claims WHERE rows_deleted > 0) AS has_erased
