-- What is wrong with the triggers that the fleet relies on; `migrate` repairs all of it.
-- Parameters: none. Zero rows: nothing. Each row: `problem` and `remedy`.
WITH wanted AS (
    SELECT name, t.tgenabled, f.oid AS function, coalesce(f.proconfig, '{}') AS settings
      FROM unnest(ARRAY['pastes_guard', 'pastes_verify_content']) AS name
      LEFT JOIN pg_trigger t ON t.tgrelid = to_regclass('pastes') AND t.tgname = name
      LEFT JOIN pg_proc f ON f.oid = t.tgfoid
), problems AS (
    SELECT format('the trigger %s on pastes %s', name,
                  CASE WHEN function IS NULL THEN 'is missing'
                       WHEN tgenabled = 'D' THEN 'is disabled'
                       ELSE 'does not fire in every session (session_replication_role)' END) AS problem
      FROM wanted WHERE tgenabled IS DISTINCT FROM 'A'
    UNION ALL
    -- After ALTER SCHEMA … RENAME the function no longer finds its tables, and no claim can be reset.
    SELECT format('the trigger function pastes_verify_content has the search_path %s, but content is in schema %s',
                  coalesce((SELECT substr(setting, 13) FROM unnest(settings) AS setting
                             WHERE starts_with(setting, 'search_path=')), 'of its caller'),
                  home)
      FROM wanted,
           (SELECT relnamespace::regnamespace::text AS home FROM pg_class
             WHERE oid = to_regclass('content')) AS content
     WHERE name = 'pastes_verify_content' AND function IS NOT NULL
       AND NOT settings @> ARRAY[format('search_path=%s, pg_temp', home)]
    UNION ALL
    SELECT format('the trigger function pastes_verify_content runs as %s, which may not read deletion_claims',
                  f.proowner::regrole)
      FROM wanted JOIN pg_proc f ON f.oid = wanted.function
     WHERE name = 'pastes_verify_content' AND to_regclass('deletion_claims') IS NOT NULL
       AND NOT has_table_privilege(f.proowner, to_regclass('deletion_claims'), 'SELECT')
)
SELECT problem, 'run `cleanupctl migrate`' AS remedy FROM problems;
