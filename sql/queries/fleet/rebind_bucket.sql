-- Binds the database to another bucket, after the objects were moved there.
-- $1 bucket, $2 prefix.
UPDATE cleanup_fleet SET bucket = $1, prefix = $2
