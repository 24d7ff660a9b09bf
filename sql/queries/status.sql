-- Status: the fleet at a glance. $1 cap of the backlog count, $2 stuck_after in seconds.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM pastes
        WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
          AND expires_at <= now()
        LIMIT $1::int) AS capped) AS backlog,
    (SELECT (extract(epoch FROM now() - expires_at))::bigint FROM pastes
     WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
       AND expires_at <= now()
     ORDER BY coalesce(retry_at, expires_at) LIMIT 1) AS oldest_overdue_s,
    (SELECT count(*) FROM pastes
     WHERE retry_at > now() AND retry_at < 'infinity' AND deletion_status = 'NOT_EXPIRED')
        AS backing_off,
    (SELECT count(*) FROM pastes
     WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED') AS dead_letters,
    (SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL)
        AS open_claims,
    (SELECT coalesce(sum(rows_claimed), 0)::bigint FROM deletion_claims
     WHERE finished_at IS NULL AND reset_at IS NULL) AS rows_in_progress,
    (SELECT count(*) FROM deletion_claims
     WHERE finished_at IS NULL AND reset_at IS NULL
       AND heartbeat_at < now() - $2::float8 * interval '1 second') AS stuck_claims,
    (SELECT coalesce(sum(rows_deleted), 0)::bigint FROM deletion_claims
     WHERE (finished_at IS NOT NULL OR reset_at IS NOT NULL)
       AND coalesce(finished_at, reset_at) > now() - interval '24 hours') AS deleted_24h,
    (SELECT coalesce(sum(rows_deleted), 0)::bigint FROM deletion_claims
     WHERE (finished_at IS NOT NULL OR reset_at IS NOT NULL)
       AND coalesce(finished_at, reset_at) > now() - interval '1 minute') AS deleted_1m
