-- Of the pastes that failed in this run, how many has nobody deleted since?
-- $1 short codes.
SELECT count(*) AS remaining FROM pastes
WHERE short_code = ANY ($1) AND deletion_status <> 'DELETED'
