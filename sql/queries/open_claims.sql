-- Status: open claims by worker, with their last beat.
SELECT worker, count(*) AS claims, sum(rows_claimed)::bigint AS rows,
       (extract(epoch FROM now() - min(heartbeat_at)) * 1000)::bigint AS oldest_beat_ms,
       (extract(epoch FROM now() - min(claimed_at)) * 1000)::bigint AS oldest_claim_ms
FROM deletion_claims
WHERE finished_at IS NULL AND reset_at IS NULL
GROUP BY worker
ORDER BY oldest_beat_ms DESC
