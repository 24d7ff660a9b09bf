-- Dry run: what a run would delete now. Content is deleted when all its references are due.
-- Parameters: none. Always one row.
WITH due AS (
    SELECT content_hash, pending_s3_key
    FROM pastes
    WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
      AND expires_at <= now()
), unreferenced AS (
    SELECT c.size_bytes
    FROM (SELECT content_hash, count(*) AS refs FROM due
          WHERE content_hash IS NOT NULL GROUP BY content_hash) AS d
    JOIN content c ON c.content_hash = d.content_hash AND c.ref_count <= d.refs
)
SELECT (SELECT count(*) FROM due) AS rows,
       (SELECT count(*) FROM unreferenced) + (SELECT count(*) FROM due WHERE pending_s3_key IS NOT NULL) AS objects,
       (SELECT coalesce(sum(size_bytes), 0)::bigint FROM unreferenced) AS bytes
