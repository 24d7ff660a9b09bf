-- Where the fleet's tables are, if they are not on this session's search_path.
-- Zero rows: nowhere that this login can see.
SELECT quote_ident(n.nspname) AS schema
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'cleanup_migrations' AND c.relkind = 'r' AND n.nspname !~ '^pg_'
   -- A first migration that was interrupted leaves it empty, and in its place.
   AND NOT pg_table_is_visible(c.oid)
 ORDER BY 1;
