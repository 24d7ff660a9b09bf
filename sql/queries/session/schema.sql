-- Does this session look for its tables in the schema $1, and nowhere else?
-- Zero rows: there is no such schema.
SELECT has_schema_privilege(oid, 'USAGE') AS usable,
       current_schemas(false) = ARRAY[nspname] AS is_path,
       current_setting('search_path') AS search_path,
       quote_ident(nspname) AS identifier,
       quote_ident(current_user) AS login
FROM pg_namespace
WHERE nspname = $1
