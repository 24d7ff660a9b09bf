-- Status: open claims by worker, with the oldest heartbeat and the ids of the first five claims. A time
-- in the future has a negative age. Ages are differences of epochs, which may be infinite; a difference
-- of infinite times is an error.
-- Parameters: none. Zero rows: there are no open claims.
SELECT worker, host, count(*) AS claims, sum(rows_claimed)::bigint AS pastes,
       (extract(epoch FROM now()) - extract(epoch FROM min(cleanup_last_heartbeat(deletion_claims))))::float8 AS heartbeat_age_s,
       (extract(epoch FROM now()) - extract(epoch FROM min(claimed_at)))::float8 AS oldest_claim_s,
       (array_agg(id ORDER BY heartbeat_at, id))[:5] AS claim_ids,
       waiting_for
FROM deletion_claims LEFT JOIN cleanup_runs USING (worker)
WHERE deletion_claims.finished_at IS NULL AND reset_at IS NULL
GROUP BY worker, host, waiting_for
ORDER BY heartbeat_age_s DESC
