-- Doctor: pastes that Postgres does not let a worker claim, and the reason of the last one.
SELECT count(*) AS unclaimable, (array_agg(error ORDER BY found_at DESC))[1] AS error
FROM cleanup_unclaimable
