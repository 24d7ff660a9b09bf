-- The bodies really moved: remember another bucket.
-- $1 bucket, $2 prefix.
UPDATE cleanup_fleet SET bucket = $1, prefix = $2
