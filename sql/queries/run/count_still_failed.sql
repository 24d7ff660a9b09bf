-- Of the pastes that failed in this run, how many have not been deleted since?
-- $1 short codes that are known to have failed, $2 short codes of a transaction whose outcome is unknown:
-- they failed if the row has an attempt and an error.
-- Always one row.
SELECT count(*) AS remaining FROM pastes
WHERE (short_code = ANY ($1) AND deletion_status <> 'DELETED')
   OR (short_code = ANY ($2) AND deletion_status = 'NOT_EXPIRED'
       AND attempts > 0 AND last_error IS NOT NULL)
