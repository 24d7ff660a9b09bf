-- Where the fleet's tables are, if they are not on this session's search_path.
-- Zero rows: nowhere that this login can see.
SELECT quote_ident(n.nspname) AS schema
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'cleanup_migrations' AND c.relkind = 'r' AND n.nspname !~ '^pg_'
 ORDER BY 1;
