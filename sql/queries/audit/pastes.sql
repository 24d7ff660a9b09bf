-- Audit: the next content hashes that pastes reference, and whether each has a content row. Rows in
-- progress are left out: they are being deleted.
-- $1 after this hash, $2 maximum pastes. If more pastes than that share a hash, the rest of them are
-- skipped: they would get the same answer.
-- Zero rows: the end of the table.
SELECT page.content_hash, page.pastes, content.content_hash IS NULL AS has_no_content
FROM (SELECT content_hash, count(*) AS pastes
      FROM (SELECT content_hash FROM pastes
            WHERE content_hash > $1
              AND content_hash IS NOT NULL
              AND deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
            ORDER BY content_hash
            LIMIT $2::bigint) AS rows
      GROUP BY content_hash) AS page
LEFT JOIN content ON content.content_hash = page.content_hash
ORDER BY page.content_hash
