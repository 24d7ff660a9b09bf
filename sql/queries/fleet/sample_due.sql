-- Which share of all pastes is due? Counted on a random part of the table's pages; by statistics it
-- would be yesterday's share, and a migration that expired everything just now would pass.
-- $1 percent of the pages, 100 = an exact count.
SELECT count(*) FILTER (WHERE deletion_status = 'NOT_EXPIRED'
                          AND coalesce(retry_at, expires_at) <= now()
                          AND expires_at <= now()) AS due,
       count(*) AS pastes
FROM pastes TABLESAMPLE SYSTEM ($1::float8)
WHERE deletion_status <> 'DELETED'
