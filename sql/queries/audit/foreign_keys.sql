-- Audit, before bodies that nobody holds are removed: tables of others that refer to content. ON DELETE
-- CASCADE would take their rows along.
SELECT string_agg(DISTINCT conrelid::regclass::text, ', ') AS tables
FROM pg_constraint
WHERE contype = 'f' AND confrelid = 'content'::regclass
