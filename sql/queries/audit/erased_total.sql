-- Audit: has the fleet ever erased a paste in this database? Answers from the totals that
-- totals/count_claims.sql writes, which stay when claims are pruned.
-- Parameters: none. Always one row.
SELECT EXISTS (SELECT FROM cleanup_totals WHERE name = 'pastes_deleted' AND value > 0) AS has_erased
