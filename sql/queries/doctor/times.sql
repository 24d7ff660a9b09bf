-- Doctor: times in the future, written while the server's clock was ahead: those that a sweep corrects
-- (sweep/correct_heartbeats.sql, sweep/correct_times.sql), those that the start of a run corrects
-- (run/forget_unclaimable.sql), and content.created_at in a random sample of pages.
-- $1 longest backoff in seconds, $2 highest number to count to.
-- Always one row.
SELECT
    (SELECT count(*) FROM deletion_claims
     WHERE finished_at IS NULL AND reset_at IS NULL
       AND heartbeat_at > now() + interval '1 minute') AS claims,
    (SELECT count(*) FROM (
        SELECT FROM pastes
        WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL
          AND deletion_initiated_at > now() + interval '1 minute'
        LIMIT $2::bigint) AS capped) AS in_progress,
    (SELECT count(*) FROM (
        SELECT FROM pastes
        WHERE deletion_status = 'DELETED' AND deletion_initiated_at > now() + interval '1 minute'
        LIMIT $2::bigint) AS capped) AS tombstones,
    (SELECT count(*) FROM (
        SELECT FROM pastes
        WHERE retry_at > now() + $1::float8 * interval '1 second' AND retry_at < 'infinity'
          AND claim_id IS NULL
        LIMIT $2::bigint) AS capped) AS retries,
    (SELECT count(*) FROM cleanup_unclaimable
     WHERE found_at > now() + interval '1 minute'
        OR retry_at > now() + interval '30 days 1 minute') AS unclaimable,
    (SELECT count(*)
     -- Two thousand pages, or all.
     FROM content TABLESAMPLE SYSTEM (least(100, 2000 * 100.0 * current_setting('block_size')::int
                                                 / greatest(1, pg_relation_size('content'))))
     WHERE created_at > now() + interval '1 minute') AS content
