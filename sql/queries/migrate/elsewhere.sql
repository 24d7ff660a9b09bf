-- Tables that the migration would create although the service seems to have its own elsewhere: under
-- another name, in another schema, or with capitals that only a quoted name has.
-- $1 postgres.schema is set: a second set of tables in that schema is intended.
-- Zero rows: none. Each row: `problem` and `remedy`, for one line `problem: remedy`.
WITH wanted (table_name, known_by) AS (
    VALUES ('pastes', ARRAY['content_hash', 'expires_at']::name[]),
           ('content', ARRAY['s3_key', 'ref_count']::name[])
), missing AS (
    SELECT * FROM wanted WHERE to_regclass(table_name) IS NULL
), others AS (
    SELECT c.oid, c.relname, n.nspname, format('%I.%I', n.nspname, c.relname) AS full_name
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
       -- Also in schemas that this login may not use: the service's tables may be there.
       AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
), namesakes AS (
    SELECT v.*, m.table_name FROM others v JOIN missing m ON lower(v.relname) = m.table_name
), lookalikes AS (
    SELECT v.full_name, m.table_name
      FROM others v JOIN missing m
        ON NOT EXISTS (SELECT FROM unnest(m.known_by) AS k (name)
                        WHERE NOT EXISTS (SELECT FROM pg_attribute a
                                           WHERE a.attrelid = v.oid AND a.attname = k.name
                                             AND NOT a.attisdropped))
     UNION SELECT full_name, table_name FROM namesakes
)
SELECT format('search_path (%s) names no schema that exists and that %s may use',
              current_setting('search_path'), current_user) AS problem,
       'create it, or set postgres.schema (CLEANUP_POSTGRES_SCHEMA)' AS remedy
 WHERE current_schema() IS NULL
UNION ALL
-- Only one of the two exists. With an empty content beside filled pastes, a run would delete all
-- expired pastes and none of their objects; with empty pastes beside filled content, all content
-- would look unreferenced.
SELECT format('%s exists in schema %s, but %s does not, and must not be created empty beside it%s',
              present.table_name, present.nspname, m.table_name,
              (SELECT '; found ' || string_agg(full_name, ', ' ORDER BY full_name)
                 FROM lookalikes l WHERE l.table_name = m.table_name)),
       format('rename your table to %s, or set postgres.schema (CLEANUP_POSTGRES_SCHEMA) to the schema that has both; create %1$s yourself if there is none',
              m.table_name)
  FROM missing m
  JOIN (SELECT w.table_name, n.nspname
          FROM wanted w JOIN pg_class c ON c.oid = to_regclass(w.table_name)
          JOIN pg_namespace n ON n.oid = c.relnamespace) AS present ON true
UNION ALL
SELECT format('pastes and content would be created in schema %s, but there is %s',
              current_schema(), string_agg(full_name, ', ' ORDER BY full_name)),
       concat_ws('; ',
           'set postgres.schema (CLEANUP_POSTGRES_SCHEMA) to the schema of your tables'
           || format(', or to %s for a new set there', current_schema()),
           string_agg(format('ALTER TABLE %s RENAME TO %s', full_name, table_name), '; ')
               FILTER (WHERE relname <> table_name))
  FROM namesakes
 WHERE (SELECT count(*) FROM missing) = 2
   AND (nspname = current_schema() OR NOT $1::boolean)
HAVING count(*) > 0;
