-- While the server was down nobody could heartbeat: silence proves nothing until workers had a chance.
-- $1 stuck_after in seconds, $2 how long a worker needs to be heard, in seconds.
-- One row: how many seconds to wait before claims are called silent; 0 when none looks so.
SELECT CASE
    WHEN EXISTS (SELECT FROM deletion_claims
                 WHERE finished_at IS NULL AND reset_at IS NULL
                   AND cleanup_last_heartbeat(deletion_claims)
                       < now() - $1::float8 * interval '1 second')
    THEN greatest(0, least($2::float8,
                           $2 - extract(epoch FROM now() - pg_postmaster_start_time())))::float8
    ELSE 0
END AS wait_s
