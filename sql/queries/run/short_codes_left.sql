-- Of the pastes that failed in this run, how many has nobody deleted since?
-- $1 short codes that failed for certain, $2 short codes that were failed in a transaction whose
-- outcome this process never learned: they failed if they carry the mark of it.
SELECT count(*) AS remaining FROM pastes
WHERE (short_code = ANY ($1) AND deletion_status <> 'DELETED')
   OR (short_code = ANY ($2) AND deletion_status = 'NOT_EXPIRED'
       AND attempts > 0 AND last_error IS NOT NULL)
