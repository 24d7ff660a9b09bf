-- What stands in the way of the migration, from the catalog alone.
-- Parameters: none. Zero rows: nothing.
-- Each row: `verdict` ('refuse': only a person can mend it; 'blocker': can be removed; 'warning'),
-- `finding` (one line for a person) and, for a blocker, `removal` (the statement that removes it).
WITH ours AS (
    SELECT c.oid, c.relname AS table_name, c.relkind, c.relowner, n.nspname
      FROM unnest(ARRAY['pastes', 'content', 'deletion_claims', 'cleanup_fleet', 'cleanup_migrations']) AS t
      JOIN pg_class c ON c.oid = to_regclass(t)
      JOIN pg_namespace n ON n.oid = c.relnamespace
), tables AS (
    SELECT * FROM ours WHERE relkind = 'r'
), wanted (table_name, column_name, essential, types) AS (
    VALUES ('pastes', 'short_code', true, ARRAY['text', 'character varying']),
           ('pastes', 'content_hash', true, ARRAY['bytea']),
           ('pastes', 'expires_at', true, ARRAY['timestamp with time zone']),
           ('pastes', 'deletion_status', false, ARRAY['character varying', 'text']),
           ('pastes', 'deletion_initiated_at', false, ARRAY['timestamp with time zone']),
           ('pastes', 'claim_id', false, ARRAY['bigint']),
           ('pastes', 'attempts', false, ARRAY['smallint']),
           ('pastes', 'retry_at', false, ARRAY['timestamp with time zone']),
           ('pastes', 'doomed_key', false, ARRAY['text']),
           ('pastes', 'last_error', false, ARRAY['text']),
           ('content', 'content_hash', true, ARRAY['bytea']),
           ('content', 's3_key', true, ARRAY['text', 'character varying']),
           ('content', 'ref_count', true, ARRAY['integer', 'bigint']),
           ('content', 'size_bytes', false, ARRAY['bigint', 'integer']),
           ('deletion_claims', 'id', true, ARRAY['bigint']),
           ('deletion_claims', 'worker', true, ARRAY['uuid']),
           ('deletion_claims', 'heartbeat_at', true, ARRAY['timestamp with time zone']),
           ('cleanup_fleet', 'singleton', true, ARRAY['boolean']),
           ('cleanup_migrations', 'version', true, ARRAY['integer'])
), columns AS (
    SELECT t.oid AS table_oid, w.*, a.attnum, a.attnotnull, a.atttypmod,
           format_type(a.atttypid, NULL) AS type, format_type(a.atttypid, a.atttypmod) AS full_type
      FROM wanted w
      JOIN tables t USING (table_name)
      LEFT JOIN pg_attribute a
             ON a.attrelid = t.oid AND a.attname = w.column_name AND NOT a.attisdropped
)
SELECT 'refuse' AS verdict,
       format('Postgres %s is too old: 15 or newer is needed', current_setting('server_version')) AS finding,
       NULL AS removal
 WHERE current_setting('server_version_num')::int < 150000
UNION ALL
SELECT 'refuse', format('%s is a %s: a plain table is needed', table_name,
                        CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                                     WHEN 'f' THEN 'foreign table' ELSE 'relation of another kind' END), NULL
  FROM ours WHERE relkind NOT IN ('r', 'p')
UNION ALL
SELECT 'refuse', format('%s is partitioned: partitioned tables are not supported', table_name), NULL
  FROM ours WHERE relkind = 'p'
UNION ALL
SELECT 'refuse', format('%s is in schema %s, but new tables would go to %s: put %2$s first in search_path',
                        table_name, nspname, coalesce(current_schema(), 'no schema at all')), NULL
  FROM ours WHERE nspname IS DISTINCT FROM current_schema()
UNION ALL
SELECT 'refuse', format('%s belongs to %s, and %s may not alter it: migrate as its owner',
                        table_name, relowner::regrole, current_user), NULL
  FROM tables WHERE NOT pg_has_role(relowner, 'USAGE')
UNION ALL
SELECT 'refuse', format('%s.%s is missing: a column of type %s is needed', table_name, column_name,
                        array_to_string(types, ' or ')), NULL
  FROM columns WHERE attnum IS NULL AND essential
UNION ALL
SELECT 'refuse', format('%s.%s is %s: %s is needed', table_name, column_name, full_type,
                        array_to_string(types, ' or ')), NULL
  FROM columns WHERE type <> ALL (types)
UNION ALL
SELECT 'refuse', format('pastes.deletion_status is %s: it must hold 20 characters', full_type), NULL
  FROM columns
 WHERE table_name = 'pastes' AND column_name = 'deletion_status' AND type = 'character varying'
   AND atttypmod BETWEEN 0 AND 23 -- a varchar's typmod is its length + 4
UNION ALL
SELECT 'refuse', format('%s.%s is %s but not unique: it must be the primary key or have a unique index of its own',
                        table_name, column_name, full_type), NULL
  FROM columns c
 WHERE (table_name, column_name) IN (('pastes', 'short_code'), ('content', 'content_hash'))
   AND attnum IS NOT NULL
   AND NOT EXISTS (SELECT FROM pg_index i
                    WHERE i.indrelid = c.table_oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                      AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = c.attnum)
UNION ALL
SELECT 'blocker', format('foreign key %I from pastes to content: the release deletes bodies that expired pastes still name, so it would fail every time, or CASCADE would destroy rows',
                         conname),
       format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', conrelid::regclass, conname)
  FROM pg_constraint
 WHERE contype = 'f' AND conrelid = to_regclass('pastes') AND confrelid = to_regclass('content')
UNION ALL
SELECT 'blocker', 'NOT NULL on pastes.content_hash: NULL is how a row says that it gave its reference back',
       format('ALTER TABLE %s ALTER COLUMN content_hash DROP NOT NULL', table_oid::regclass)
  FROM columns WHERE table_name = 'pastes' AND column_name = 'content_hash' AND attnotnull
UNION ALL
SELECT 'warning', format('foreign key %I from %s to %s: rows that are still referenced cannot be deleted by the fleet (ON DELETE CASCADE and an index on the referencing column make it work)',
                         conname, conrelid::regclass, confrelid::regclass), NULL
  FROM pg_constraint
 WHERE contype = 'f' AND confdeltype IN ('a', 'r')
   AND confrelid IN (to_regclass('pastes'), to_regclass('content'))
   AND NOT (conrelid = to_regclass('pastes') AND confrelid = to_regclass('content'))
UNION ALL
SELECT 'warning', 'pastes.deletion_status may be NULL so far: rows without a status become NOT_EXPIRED, and statements that write NULL there (not those that leave it out) will be refused', NULL
  FROM columns
 WHERE table_name = 'pastes' AND column_name = 'deletion_status' AND NOT attnotnull;
