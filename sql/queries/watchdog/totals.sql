-- The fleet's totals since the beginning: some hundred rows at most.
SELECT name, label, value FROM cleanup_totals
