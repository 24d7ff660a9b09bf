-- Which rules are not yet proven for the data of an existing pastes or content?
-- Parameters: none. Zero rows: constraints and indexes prove all of them, no table needs to be read.
-- Each row: `subject` (table.column), `problem` (follows the count), `remedy`, and `counting`, the
-- statement that counts the rows that violate the rule.
WITH columns AS (
    SELECT c.oid AS table_oid, c.relname AS table_name, a.attname AS column_name, a.attnum, a.attnotnull
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.oid IN (to_regclass('pastes'), to_regclass('content'))
), checks AS (
    SELECT c.table_name, c.column_name, con.conname, con.convalidated,
           pg_get_constraintdef(con.oid) AS rule, pg_get_expr(con.conbin, con.conrelid) AS expression
      FROM columns c
      JOIN pg_constraint con
        ON con.conrelid = c.table_oid AND con.contype = 'c' AND con.conkey = ARRAY[c.attnum]
)
SELECT 'content.ref_count' AS subject, 'rows are NULL or negative' AS problem,
       'set each to the number of pastes with its content_hash' AS remedy,
       'SELECT count(*) FROM content WHERE ref_count IS NULL OR ref_count < 0' AS counting
  FROM columns c
 WHERE table_name = 'content' AND column_name = 'ref_count'
   AND NOT (attnotnull AND EXISTS (SELECT FROM checks k
                                    WHERE (k.table_name, k.column_name) = ('content', 'ref_count')
                                      AND k.convalidated AND k.rule ~ '^CHECK \(\(ref_count >= 0\)\)$'))
UNION ALL
SELECT 'content.s3_key', 'rows are NULL', 'give each the key of its object, or delete it',
       'SELECT count(*) FROM content WHERE s3_key IS NULL'
  FROM columns WHERE table_name = 'content' AND column_name = 's3_key' AND NOT attnotnull
UNION ALL
SELECT 'content.s3_key', 'rows share their key with another row',
       'one object must belong to one row: copy the object to a key of its own for each of the others',
       'SELECT coalesce(sum(n), 0)::bigint FROM (SELECT count(*) AS n FROM content GROUP BY s3_key HAVING s3_key IS NOT NULL AND count(*) > 1) shared'
  FROM columns c
 WHERE table_name = 'content' AND column_name = 's3_key'
   AND NOT EXISTS (SELECT FROM pg_index i
                    WHERE i.indrelid = c.table_oid AND i.indisunique AND i.indisvalid
                      AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = c.attnum)
UNION ALL
SELECT 'pastes.deletion_status', 'rows have an unknown status',
       'set each to NOT_EXPIRED, DELETION_IN_PROGRESS or DELETED',
       'SELECT count(*) FROM pastes WHERE deletion_status NOT IN (''NOT_EXPIRED'', ''DELETION_IN_PROGRESS'', ''DELETED'')'
  FROM columns
 WHERE table_name = 'pastes' AND column_name = 'deletion_status'
   AND NOT EXISTS (SELECT FROM checks k
                    WHERE (k.table_name, k.column_name) = ('pastes', 'deletion_status') AND k.convalidated
                      AND k.rule ~ '^CHECK .*deletion_status(?=.*''NOT_EXPIRED'')(?=.*''DELETION_IN_PROGRESS'')(?=.*''DELETED'')(?!(.*''){7})')
UNION ALL
SELECT 'pastes.attempts', 'rows are NULL', 'set each to 0',
       'SELECT count(*) FROM pastes WHERE attempts IS NULL'
  FROM columns WHERE table_name = 'pastes' AND column_name = 'attempts' AND NOT attnotnull
UNION ALL
-- Counts statuses, not rows: a CHECK of the table's owner that allows fewer than the three.
SELECT 'pastes.deletion_status', format('of the statuses that the fleet writes are forbidden by the constraint %I', conname),
       'drop or widen that constraint',
       format('SELECT count(*) FROM (VALUES (''NOT_EXPIRED''::varchar), (''DELETION_IN_PROGRESS''), (''DELETED'')) AS pastes (deletion_status) WHERE NOT (%s)',
              expression)
  FROM checks WHERE table_name = 'pastes' AND column_name = 'deletion_status';
