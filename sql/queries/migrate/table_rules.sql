-- Properties of the tables, from the catalog, that make them unusable for the fleet. Read by
-- `migrate` before it changes anything, by every program when it starts, and by the doctor.
-- $1 the tables are migrated: what `migrate` adds must exist.
-- Zero rows: nothing. Each row: `problem` and `remedy`, for one line `problem: remedy`.
WITH ours AS (
    SELECT t AS table_name, c.oid, c.relkind, c.relispartition, c.relnamespace
      FROM unnest(ARRAY['pastes', 'content', 'deletion_claims', 'cleanup_fleet', 'cleanup_migrations']) AS t
      LEFT JOIN pg_class c ON c.oid = to_regclass(t)
), wanted (table_name, column_name, essential, not_null, exact, types) AS (
    -- `essential`: migrate cannot add it. `not_null`: 1 always, 2 once migrated. `exact`: with less
    -- than microseconds, comparisons with a time of another table go wrong.
    VALUES ('pastes', 'short_code', true, 1, false, ARRAY['text', 'character varying']),
           ('pastes', 'content_hash', true, 0, false, ARRAY['bytea']),
           ('pastes', 'expires_at', true, 0, false, ARRAY['timestamp with time zone']),
           ('pastes', 'deletion_status', false, 2, false, ARRAY['character varying', 'text']),
           -- Equal to deletion_claims.claimed_at in the rows of a claim.
           ('pastes', 'deletion_initiated_at', false, 0, true, ARRAY['timestamp with time zone']),
           ('pastes', 'claim_id', false, 0, false, ARRAY['bigint']),
           ('pastes', 'attempts', false, 2, false, ARRAY['smallint']),
           ('pastes', 'retry_at', false, 0, true, ARRAY['timestamp with time zone']),
           ('pastes', 'pending_s3_key', false, 0, false, ARRAY['text']),
           ('pastes', 'last_error', false, 0, false, ARRAY['text']),
           ('content', 'content_hash', true, 1, false, ARRAY['bytea']),
           ('content', 's3_key', true, 2, false, ARRAY['text', 'character varying']),
           ('content', 'ref_count', true, 2, false, ARRAY['integer', 'bigint']),
           ('content', 'size_bytes', false, 0, false, ARRAY['bigint', 'integer', 'smallint', 'numeric']),
           -- Later than claimed_at when the content was stored again: rounded down, it would not be.
           ('content', 'created_at', false, 0, true, ARRAY['timestamp with time zone']),
           ('deletion_claims', 'id', true, 1, false, ARRAY['bigint']),
           ('deletion_claims', 'worker', true, 1, false, ARRAY['uuid']),
           ('deletion_claims', 'claimed_at', true, 1, true, ARRAY['timestamp with time zone']),
           ('deletion_claims', 'heartbeat_at', true, 1, true, ARRAY['timestamp with time zone']),
           ('cleanup_fleet', 'singleton', true, 1, false, ARRAY['boolean']),
           ('cleanup_migrations', 'version', true, 1, false, ARRAY['integer'])
), columns AS (
    SELECT t.oid AS table_oid, w.*, a.attnum, a.attnotnull, a.atttypmod, a.attcollation,
           format_type(a.atttypid, NULL) AS type, format_type(a.atttypid, a.atttypmod) AS full_type
      FROM wanted w
      JOIN ours t ON t.table_name = w.table_name AND t.relkind = 'r'
      LEFT JOIN pg_attribute a
             ON a.attrelid = t.oid AND a.attname = w.column_name AND NOT a.attisdropped
)
SELECT format('%s is a %s', table_name,
              CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                           WHEN 'f' THEN 'foreign table' ELSE 'relation of another kind' END) AS problem,
       'a plain table is needed' AS remedy
  FROM ours WHERE relkind NOT IN ('r', 'p')
UNION ALL
SELECT format('%s is partitioned', table_name), 'partitioned tables are not supported'
  FROM ours WHERE relkind = 'p'
UNION ALL
-- The same short code may be expired in a child and live in the parent: a claim of the one would
-- delete the other.
SELECT format('%s inherits from %s, so statements on %2$s also affect its rows',
              i.inhrelid::regclass, i.inhparent::regclass),
       CASE WHEN c.relispartition
            THEN format('run ALTER TABLE %s DETACH PARTITION %s', i.inhparent::regclass, i.inhrelid::regclass)
            ELSE format('run ALTER TABLE %s NO INHERIT %s', i.inhrelid::regclass, i.inhparent::regclass) END
  FROM pg_inherits i
  JOIN pg_class c ON c.oid = i.inhrelid
 WHERE EXISTS (SELECT FROM ours o WHERE o.oid = i.inhrelid OR (o.oid = i.inhparent AND o.relkind = 'r'))
UNION ALL
SELECT format('%s is in schema %s, but the list of migrations is in %s', o.table_name,
              o.relnamespace::regnamespace, home.relnamespace::regnamespace),
       'set postgres.schema (CLEANUP_POSTGRES_SCHEMA) to the schema that has all of them'
  FROM ours o JOIN ours home ON home.table_name = 'cleanup_migrations'
 WHERE o.relnamespace <> home.relnamespace
UNION ALL
SELECT format('the table %s is missing', table_name), 'restore it, or rename it back'
  FROM ours WHERE oid IS NULL AND $1::boolean
UNION ALL
SELECT format('%s.%s is missing', table_name, column_name),
       format('a column of type %s is needed', array_to_string(types, ' or '))
  FROM columns WHERE attnum IS NULL AND (essential OR $1::boolean)
UNION ALL
SELECT format('%s.%s is %s', table_name, column_name, full_type),
       format('%s is needed', array_to_string(types, ' or '))
  FROM columns WHERE type <> ALL (types)
UNION ALL
SELECT format('%s.%s is %s, but microsecond precision is needed to compare it with other times',
              table_name, column_name, full_type),
       format('run ALTER TABLE %s ALTER COLUMN %I TYPE timestamptz', table_oid::regclass, column_name)
  FROM columns WHERE exact AND type = ANY (types) AND atttypmod BETWEEN 0 AND 5
UNION ALL
-- Such a collation treats different keys as equal, and supports neither LIKE nor regular
-- expressions.
SELECT format('%s.%s has the non-deterministic collation %I', table_name, column_name, l.collname),
       format('run ALTER TABLE %s ALTER COLUMN %I TYPE %s COLLATE "default"', table_oid::regclass,
              column_name, full_type)
  FROM columns c JOIN pg_collation l ON l.oid = c.attcollation
 WHERE NOT l.collisdeterministic
UNION ALL
SELECT format('pastes.deletion_status is %s', full_type), 'it must have room for 20 characters'
  FROM columns
 WHERE table_name = 'pastes' AND column_name = 'deletion_status' AND type = 'character varying'
   AND atttypmod BETWEEN 0 AND 23 -- a varchar's typmod is its length + 4
UNION ALL
SELECT format('%s.%s is nullable', table_name, column_name),
       format('run ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', table_oid::regclass, column_name)
  FROM columns WHERE NOT attnotnull AND (not_null = 1 OR (not_null = 2 AND $1::boolean))
UNION ALL
SELECT CASE WHEN late IS NULL THEN format('%s.%s is %s but not unique', table_name, column_name, full_type)
            ELSE format('%s.%s is unique only through %s, which is DEFERRABLE: two rows may share a value until COMMIT, and ON CONFLICT does not accept it',
                        table_name, column_name, late::regclass) END,
       CASE WHEN late IS NULL THEN 'it must be the primary key or have a unique index of its own'
            ELSE format('run CREATE UNIQUE INDEX CONCURRENTLY ON %s (%I)', table_oid::regclass, column_name) END
  FROM columns c
 CROSS JOIN LATERAL (
     SELECT coalesce(bool_or(i.indimmediate), false) AS is_unique, min(i.indexrelid::bigint)::oid AS late
       FROM pg_index i
      WHERE i.indrelid = c.table_oid AND i.indisunique AND i.indisvalid
        AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = c.attnum) AS keys
 WHERE (table_name, column_name) IN (('pastes', 'short_code'), ('content', 'content_hash'))
   AND attnum IS NOT NULL AND NOT is_unique
UNION ALL
SELECT 'deletion_claims.id has no sequence',
       'run ALTER TABLE deletion_claims ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY'
  FROM columns
 WHERE table_name = 'deletion_claims' AND column_name = 'id' AND attnum IS NOT NULL
   AND pg_get_serial_sequence(table_oid::regclass::text, 'id') IS NULL;
