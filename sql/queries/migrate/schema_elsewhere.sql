-- The schemas that have the fleet's tables, if they are not on this session's search_path.
-- Parameters: none. Zero rows: none that this login can see.
SELECT quote_ident(n.nspname) AS schema
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'cleanup_migrations' AND c.relkind = 'r' AND n.nspname !~ '^pg_'
   -- An interrupted first migration leaves the table empty, and in the right schema.
   AND NOT pg_table_is_visible(c.oid)
 ORDER BY 1;
