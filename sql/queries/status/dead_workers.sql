-- Doctor, and the end of a run: workers with open claims and no recent heartbeat, the oldest
-- heartbeat first.
-- $1 minimum age of the heartbeat in seconds.
-- Zero rows: every worker with an open claim has a recent heartbeat.
SELECT worker, sum(rows_claimed)::bigint AS pastes,
       (extract(epoch FROM now()) - extract(epoch FROM min(cleanup_last_heartbeat(deletion_claims))))::float8 AS heartbeat_age_s
FROM deletion_claims
WHERE finished_at IS NULL AND reset_at IS NULL
  AND cleanup_last_heartbeat(deletion_claims) < now() - $1::float8 * interval '1 second'
GROUP BY worker
ORDER BY heartbeat_age_s DESC
