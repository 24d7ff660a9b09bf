-- Doctor: the number of dead letters, and the error of the one that has waited longest.
-- $1 highest number to count to.
-- Always one row.
SELECT count(*) AS dead_letters,
       (array_agg(short_code ORDER BY expires_at))[1] AS oldest,
       (array_agg(last_error ORDER BY expires_at))[1] AS its_error
FROM (SELECT short_code, last_error, expires_at
      FROM pastes
      WHERE retry_at = 'infinity' AND deletion_status = 'NOT_EXPIRED'
      LIMIT $1::bigint) AS dead
