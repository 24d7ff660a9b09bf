-- Audit: keys that cut content into ranges of about the same size, in byte order.
-- $1 percent of the table's pages to sample, $2 number of ranges.
-- Zero rows: one range is enough.
SELECT max(s3_key COLLATE "C") AS last_key
FROM (SELECT s3_key, ntile($2::int) OVER (ORDER BY s3_key COLLATE "C") AS part
      FROM content TABLESAMPLE SYSTEM ($1::float8)) AS sample
WHERE part < $2::int
GROUP BY part
ORDER BY part
