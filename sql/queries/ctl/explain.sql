-- Explain: everything that the tables know about one paste.
-- $1 short code.
-- Zero rows: there is no such paste.
-- Ages are differences of epochs, which may be infinite; a difference of infinite times is an error.
SELECT p.deletion_status, p.attempts::int AS attempts, p.last_error, p.pending_s3_key,
       p.content_hash IS NOT NULL AS has_reference, p.claim_id,
       p.retry_at = 'infinity' AS is_dead_letter,
       -- As in stranded/deferred.sql.
       p.claim_id IS NULL AND p.retry_at > p.deletion_initiated_at
           AND starts_with(p.last_error, 'waits for its content row') AS waits_for_content,
       (SELECT u.error FROM cleanup_unclaimable u
        WHERE u.short_code = p.short_code AND u.retry_at > now()) AS unclaimable,
       (extract(epoch FROM now()) - extract(epoch FROM p.expires_at))::float8 AS overdue_s,
       CASE WHEN p.retry_at < 'infinity'
            THEN (extract(epoch FROM p.retry_at) - extract(epoch FROM now()))::float8 END AS retry_in_s,
       (extract(epoch FROM now()) - extract(epoch FROM p.deletion_initiated_at))::float8 AS in_progress_s,
       claim.id IS NOT NULL AND claim.finished_at IS NULL AND claim.reset_at IS NULL
           AS claim_is_open,
       claim.worker, claim.decremented_at IS NOT NULL AS decremented,
       (extract(epoch FROM now()) - extract(epoch FROM cleanup_last_heartbeat(claim)))::float8 AS heartbeat_s_ago,
       content.s3_key, content.ref_count::bigint AS ref_count,
       -- As a recount would: see content/count_references.sql.
       CASE WHEN content.content_hash IS NOT NULL THEN
           (SELECT count(*) FROM pastes other
            WHERE other.content_hash = p.content_hash
              AND other.deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED'))
           + (SELECT count(*)
              FROM pastes other
              LEFT JOIN deletion_claims c
                  ON c.id = other.claim_id AND c.claimed_at = other.deletion_initiated_at
              WHERE other.content_hash = p.content_hash
                AND other.deletion_status = 'DELETION_IN_PROGRESS'
                AND c.decremented_at IS NULL) END AS refs
FROM pastes p
LEFT JOIN deletion_claims claim ON claim.id = p.claim_id
LEFT JOIN content ON content.content_hash = p.content_hash
WHERE p.short_code = $1
