-- A snapshot of the fleet, without the size of the backlog. Nothing is counted by a full scan: each
-- number comes from an index with few rows.
-- $1 stuck_after in seconds.
-- Always one row.
SELECT
    (SELECT extract(epoch FROM now() - greatest(expires_at, 'epoch'))::float8 FROM pastes
     WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
       AND expires_at <= now()
       -- These have no age; expired_at_minus_infinity reports them.
       AND coalesce(retry_at, expires_at) > '-infinity' AND expires_at > '-infinity'
       AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
            OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                 WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
     ORDER BY coalesce(retry_at, expires_at) LIMIT 1) AS oldest_overdue_s,
    EXISTS (SELECT FROM pastes
            WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) = '-infinity'
              AND expires_at <= now()) AS expired_at_minus_infinity,
    (SELECT count(*) FROM pastes
     WHERE retry_at > now() AND retry_at < 'infinity' AND deletion_status = 'NOT_EXPIRED')
        AS backing_off,
    (SELECT count(*) FROM pastes
     WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED') AS dead_letters,
    (SELECT count(*) FROM cleanup_unclaimable) AS unclaimable,
    open.claims AS open_claims, open.pastes AS in_progress, open.stuck AS stuck_claims,
    open.workers,
    lately.deleted_24h, lately.deleted_1m, lately.busy_s,
    (SELECT extract(epoch FROM max(ended_at))::float8 FROM cleanup_runs
     WHERE stopped_because = 'drained' AND ended_at < now() + interval '1 minute') AS last_success_s,
    -- Both leave out times that were written while the clock was ahead.
    (SELECT extract(epoch FROM max(started_at))::float8 FROM cleanup_runs
     WHERE started_at < now() + interval '1 minute') AS last_start_s,
    CASE WHEN fleet.paused_at IS NOT NULL THEN coalesce(fleet.pause_reason, 'no reason given') END AS paused,
    audit.ended_s AS audited_s, audit.findings_left,
    extract(epoch FROM now())::float8 AS now_s
FROM (SELECT count(*) AS claims, coalesce(sum(rows_claimed), 0)::bigint AS pastes,
             count(*) FILTER (WHERE cleanup_last_heartbeat(deletion_claims)
                                    < now() - $1::float8 * interval '1 second') AS stuck,
             count(DISTINCT worker) AS workers
      FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL) AS open,
     (SELECT coalesce(sum(rows_deleted), 0)::bigint AS deleted_24h,
             coalesce(sum(rows_deleted) FILTER (
                 WHERE coalesce(finished_at, reset_at) > now() - interval '1 minute'), 0)::bigint
                 AS deleted_1m,
             -- A run that began ten seconds ago has only been deleting for ten seconds.
             least(60, extract(epoch FROM now() - min(claimed_at) FILTER (
                 WHERE coalesce(finished_at, reset_at) > now() - interval '1 minute')))::float8
                 AS busy_s
      FROM deletion_claims
      WHERE (finished_at IS NOT NULL OR reset_at IS NOT NULL)
        AND coalesce(finished_at, reset_at) > now() - interval '24 hours'
        -- Leaves out times that were written while the clock was ahead.
        AND coalesce(finished_at, reset_at) < now() + interval '1 minute') AS lately,
     cleanup_fleet AS fleet
LEFT JOIN (SELECT extract(epoch FROM ended_at)::float8 AS ended_s, findings_left
           FROM cleanup_audits WHERE complete ORDER BY id DESC LIMIT 1) AS audit ON true
