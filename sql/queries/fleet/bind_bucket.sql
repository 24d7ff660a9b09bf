-- Binds the database to a bucket, the first time: one database, one bucket.
-- $1 bucket, $2 prefix.
-- Zero rows: it is bound already, to this bucket or another one.
UPDATE cleanup_fleet
SET bucket = $1, prefix = $2
WHERE bucket IS NULL
