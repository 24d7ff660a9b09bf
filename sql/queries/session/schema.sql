-- Does this session find its tables in one schema only?
-- $1 name of the schema.
-- Zero rows: there is no such schema.
SELECT has_schema_privilege(oid, 'USAGE') AS usable,
       current_schemas(false) = ARRAY[nspname] AS is_path,
       current_setting('search_path') AS search_path,
       quote_ident(nspname) AS identifier,
       quote_ident(current_user) AS login
FROM pg_namespace
WHERE nspname = $1
