-- Which share of all pastes is due? Counted on a random sample of the table's pages. Statistics may be
-- a day old, and would miss a migration that has just expired everything.
-- $1 percent of the pages, 100 = an exact count.
-- Always one row.
SELECT count(*) FILTER (WHERE deletion_status = 'NOT_EXPIRED'
                          AND coalesce(retry_at, expires_at) <= now()
                          AND expires_at <= now()) AS due,
       count(*) AS pastes
FROM pastes TABLESAMPLE SYSTEM ($1::float8)
WHERE deletion_status <> 'DELETED'
