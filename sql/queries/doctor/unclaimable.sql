-- Doctor: the number of pastes that Postgres does not let a worker claim, and the most recent error.
-- Parameters: none. Always one row.
SELECT count(*) AS unclaimable, (array_agg(error ORDER BY found_at DESC))[1] AS error
FROM cleanup_unclaimable
