-- Does one of the fleet's indexes exist, and is it valid?
-- $1 name of the index.
-- Always one row: `ready` (it, or an equivalent index of the table's owner, is valid) and `leftover`,
-- the statement that drops an INVALID index of that name (NULL: there is none).
WITH on_our_tables AS (
    SELECT i.*, c.relname, n.nspname, am.amname
      FROM pg_index i
      JOIN pg_class c ON c.oid = i.indexrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_am am ON am.oid = c.relam
     WHERE i.indrelid IN (to_regclass('pastes'), to_regclass('content'), to_regclass('deletion_claims'))
), stand_in (index_name, table_name, column_name, must_be_unique) AS (
    VALUES ('pastes_content_hash_idx', 'pastes', 'content_hash', false),
           ('content_s3_key_key', 'content', 's3_key', true)
)
SELECT EXISTS (SELECT FROM on_our_tables WHERE relname = $1 AND indisvalid)
       OR EXISTS (
           SELECT FROM stand_in s
             JOIN on_our_tables i ON i.indrelid = to_regclass(s.table_name)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = s.column_name
            WHERE s.index_name = $1 AND i.amname = 'btree'
              AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum
              -- ON CONFLICT takes an immediate unique index on exactly this column.
              AND (NOT s.must_be_unique OR (i.indisunique AND i.indimmediate AND i.indnkeyatts = 1))
       ) AS ready,
       (SELECT format('DROP INDEX CONCURRENTLY IF EXISTS %I.%I', nspname, relname)
          FROM on_our_tables WHERE relname = $1 AND NOT indisvalid) AS leftover;
