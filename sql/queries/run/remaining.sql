-- What a run leaves: due, backing off, dead letters, unclaimable, and claimed by other workers. Cheap on
-- a large table: due pastes are counted up to a cap.
-- $1 worker uuid, $2 cap of the due count.
-- Always one row.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM pastes
        WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
          AND expires_at <= now()
          AND (NOT EXISTS (SELECT FROM cleanup_unclaimable WHERE retry_at > now())
               OR ((SELECT u.retry_at FROM cleanup_unclaimable u
                    WHERE u.short_code = pastes.short_code COLLATE "default") > now()) IS NOT TRUE)
        LIMIT $2::int) AS capped) AS due,
    (SELECT count(*) FROM pastes
     WHERE retry_at > now() AND retry_at < 'infinity'
       AND deletion_status = 'NOT_EXPIRED' AND expires_at <= now()) AS backing_off,
    (SELECT count(*) FROM pastes
     WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED') AS dead_letters,
    (SELECT count(*) FROM cleanup_unclaimable) AS unclaimable,
    (SELECT coalesce(sum(rows_claimed), 0)::bigint FROM deletion_claims
     WHERE finished_at IS NULL AND reset_at IS NULL AND worker <> $1) AS claimed_by_others
