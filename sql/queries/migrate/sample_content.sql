-- Of a random sample of the pastes that need content, how many have no content row?
-- $1 percent of the table's pages, 100 = all of them.
-- Always one row.
SELECT count(*) AS sampled,
       count(*) FILTER (WHERE NOT EXISTS (SELECT FROM content c
                                           WHERE c.content_hash = p.content_hash)) AS missing
FROM pastes p TABLESAMPLE SYSTEM ($1::float8)
WHERE p.deletion_status = 'NOT_EXPIRED' AND p.content_hash IS NOT NULL
