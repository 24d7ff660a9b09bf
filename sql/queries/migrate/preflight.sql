-- What prevents the migration, according to the catalog, in addition to migrate/table_rules.sql.
-- Parameters: none. Zero rows: nothing.
-- Each row: `verdict` ('refuse': only a person can fix it; 'blocker': can be removed; 'warning'),
-- `finding` (one line for a person) and, for a blocker, `removal` (the statement that removes it).
WITH ours AS (
    SELECT c.oid, c.relname AS table_name, c.relkind, c.relowner, n.nspname
      FROM unnest(ARRAY['pastes', 'content', 'deletion_claims', 'cleanup_fleet', 'cleanup_migrations']) AS t
      JOIN pg_class c ON c.oid = to_regclass(t)
      JOIN pg_namespace n ON n.oid = c.relnamespace
), columns AS (
    SELECT t.oid AS table_oid, t.table_name, a.attname AS column_name, a.attnotnull
      FROM ours t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE t.relkind = 'r'
)
SELECT 'refuse' AS verdict,
       format('Postgres %s is too old: 15 or newer is needed', current_setting('server_version')) AS finding,
       NULL AS removal
 WHERE current_setting('server_version_num')::int < 150000
UNION ALL
SELECT 'refuse', format('%s is in schema %s, but new tables would go to %s: set postgres.schema (CLEANUP_POSTGRES_SCHEMA) to %2$s, or put it first in search_path',
                        table_name, nspname, coalesce(current_schema(), 'no schema at all')), NULL
  FROM ours WHERE nspname IS DISTINCT FROM current_schema()
UNION ALL
SELECT 'refuse', format('%s belongs to %s, and %s may not alter it: migrate as its owner',
                        table_name, relowner::regrole, current_user), NULL
  FROM ours WHERE relkind = 'r' AND NOT pg_has_role(relowner, 'USAGE')
UNION ALL
SELECT 'blocker', format('foreign key %I from pastes to content: a decrement deletes content that expired pastes still reference, so it would always fail, or CASCADE would delete their rows',
                         conname),
       format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', conrelid::regclass, conname)
  FROM pg_constraint
 WHERE contype = 'f' AND conrelid = to_regclass('pastes') AND confrelid = to_regclass('content')
UNION ALL
SELECT 'blocker', 'NOT NULL on pastes.content_hash: NULL marks a row without a reference',
       format('ALTER TABLE %s ALTER COLUMN content_hash DROP NOT NULL', table_oid::regclass)
  FROM columns WHERE table_name = 'pastes' AND column_name = 'content_hash' AND attnotnull
UNION ALL
SELECT 'warning', format('foreign key %I from %s to %s: rows that are still referenced cannot be deleted by the fleet (add ON DELETE CASCADE and an index on the referencing column)',
                         conname, conrelid::regclass, confrelid::regclass), NULL
  FROM pg_constraint
 WHERE contype = 'f' AND confdeltype IN ('a', 'r')
   AND confrelid IN (to_regclass('pastes'), to_regclass('content'))
   AND NOT (conrelid = to_regclass('pastes') AND confrelid = to_regclass('content'))
UNION ALL
SELECT 'warning', 'pastes.deletion_status is nullable: rows without a status become NOT_EXPIRED, and statements that write NULL (not those that omit the column) will be refused', NULL
  FROM columns
 WHERE table_name = 'pastes' AND column_name = 'deletion_status' AND NOT attnotnull
UNION ALL
SELECT 'warning', 'content.created_at is nullable: decrements and audits treat content without it as old; fill it, then run ALTER TABLE content ALTER COLUMN created_at SET NOT NULL', NULL
  FROM columns
 WHERE table_name = 'content' AND column_name = 'created_at' AND NOT attnotnull;
