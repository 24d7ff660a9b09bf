-- Audit, before unreferenced content rows are deleted: the tables with a foreign key to content. ON
-- DELETE CASCADE would delete their rows as well.
-- Parameters: none. Always one row; `tables` is NULL when there are none.
SELECT string_agg(DISTINCT conrelid::regclass::text, ', ') AS tables
FROM pg_constraint
WHERE contype = 'f' AND confrelid = 'content'::regclass
