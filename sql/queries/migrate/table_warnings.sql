-- Properties of the tables, from the catalog, that slow the fleet down or can lose its work,
-- without stopping it. Read by `migrate`, which logs them as warnings, and by the doctor.
-- Parameters: none. Zero rows: nothing. Each row: `problem` and `remedy`, for one line `problem: remedy`.
WITH RECURSIVE keys AS (
    -- A foreign key from pastes to content is a blocker, see migrate/preflight.sql.
    SELECT con.oid, con.conname, con.conrelid, con.confrelid,
           ARRAY(SELECT a.attname
                   FROM unnest(con.conkey) WITH ORDINALITY AS k (attnum, place)
                   JOIN pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = k.attnum
                  ORDER BY k.place) AS columns
      FROM pg_constraint con
     WHERE con.contype = 'f' AND con.conparentid = 0
       AND con.confrelid IN (to_regclass('pastes'), to_regclass('content'))
       AND NOT (con.conrelid = to_regclass('pastes') AND con.confrelid = to_regclass('content'))
       -- NOT ENFORCED: a column of Postgres 18.
       AND to_jsonb(con) ->> 'conenforced' IS DISTINCT FROM 'false'
), parts AS (
    -- Each partition is scanned separately, and needs its own index.
    SELECT oid AS key, conrelid AS part FROM keys
    UNION ALL
    SELECT p.key, i.inhrelid
      FROM parts p
      JOIN pg_class c ON c.oid = p.part AND c.relkind = 'p'
      JOIN pg_inherits i ON i.inhparent = p.part
), unindexed AS (
    SELECT k.*, p.part
      FROM keys k JOIN parts p ON p.key = k.oid
      JOIN pg_class c ON c.oid = p.part AND c.relkind = 'r'
     WHERE NOT EXISTS (
         SELECT FROM pg_index i
           JOIN pg_class x ON x.oid = i.indexrelid
           JOIN pg_am am ON am.oid = x.relam AND am.amname IN ('btree', 'hash')
          WHERE i.indrelid = p.part AND i.indisvalid AND i.indnkeyatts >= cardinality(k.columns)
            -- Its first columns are those of the foreign key, in any order. Postgres does not use an
            -- index with another collation.
            AND ARRAY(SELECT a.attname
                        FROM generate_series(0, cardinality(k.columns) - 1) AS place
                        JOIN pg_attribute a ON a.attrelid = p.part AND a.attnum = i.indkey[place]
                                           AND a.attcollation = i.indcollation[place]
                       ORDER BY a.attname)
                = ARRAY(SELECT name FROM unnest(k.columns) AS name ORDER BY name)
            -- Rows with NULL reference nothing, so the index may leave them out.
            AND (i.indpred IS NULL
                 OR string_to_array(trim(BOTH '()' FROM pg_get_expr(i.indpred, i.indrelid)), ') AND (')
                    <@ ARRAY(SELECT format('%I IS NOT NULL', name) FROM unnest(k.columns) AS name)))
), named AS (
    SELECT *, (SELECT string_agg(quote_ident(name), ', ' ORDER BY place)
                 FROM unnest(columns) WITH ORDINALITY AS c (name, place)) AS list
      FROM unindexed
)
SELECT format('foreign key %I of %s (%s) references %s and has no index, so every row deleted from %4$s scans all of %2$s',
              conname, conrelid::regclass, list, confrelid::regclass) AS problem,
       'run ' || string_agg(format('CREATE INDEX CONCURRENTLY ON %s (%s)', part::regclass, list), '; ' ORDER BY part) AS remedy
  FROM named
 GROUP BY oid, conname, conrelid, confrelid, list
UNION ALL
SELECT format('%s is UNLOGGED: a server crash empties it, and standbys do not have its rows', c.oid::regclass),
       format('run ALTER TABLE %s SET LOGGED, which locks and rewrites it', c.oid::regclass)
  FROM unnest(ARRAY['pastes', 'content', 'deletion_claims', 'cleanup_fleet', 'cleanup_unclaimable']) AS t
  JOIN pg_class c ON c.oid = to_regclass(t)
 WHERE c.relpersistence = 'u'
 ORDER BY 1;
