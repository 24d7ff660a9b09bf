-- The fleet's totals since its first run: some hundred rows at most.
-- Parameters: none.
SELECT name, label, value FROM cleanup_totals
