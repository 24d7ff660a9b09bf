-- Audit: has the fleet erased a paste in this database? By what watchdog/count_claims.sql has added up: it
-- stays when the claims are pruned.
SELECT EXISTS (SELECT FROM cleanup_totals WHERE name = 'pastes_deleted' AND value > 0) AS has_erased
