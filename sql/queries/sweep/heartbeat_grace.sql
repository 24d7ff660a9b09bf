-- While the server was down no worker could send a heartbeat, so old heartbeats prove nothing until
-- workers have had time for a new one.
-- $1 stuck_after in seconds, $2 time that a worker needs for a heartbeat, in seconds.
-- Always one row: how many seconds a sweep must wait; 0 if no lease seems to have expired, or if
-- the server has been up for long enough.
SELECT CASE
    WHEN EXISTS (SELECT FROM deletion_claims
                 WHERE finished_at IS NULL AND reset_at IS NULL
                   AND cleanup_last_heartbeat(deletion_claims)
                       < now() - $1::float8 * interval '1 second')
    THEN greatest(0, least($2::float8,
                           $2 - extract(epoch FROM now() - pg_postmaster_start_time())))::float8
    ELSE 0
END AS wait_s
