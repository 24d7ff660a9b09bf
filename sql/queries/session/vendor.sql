-- Name of the product, if it is not Postgres itself.
-- Parameters: none. Always one row.
SELECT CASE
           WHEN version() LIKE '%CockroachDB%' THEN 'CockroachDB'
           WHEN version() LIKE '%-YB-%' THEN 'YugabyteDB'
           WHEN EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN 'Citus'
       END AS vendor
