-- One database, one bucket: remember it the first time.
-- $1 bucket, $2 prefix.
-- Zero rows: another bucket or prefix is remembered already.
UPDATE cleanup_fleet
SET bucket = $1, prefix = $2
WHERE bucket IS NULL
