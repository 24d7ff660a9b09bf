-- Audit: the next bodies that pastes hold, by the pastes, and whether a content row knows each. Rows
-- in progress are left out: they are on their way out.
-- $1 after this hash, $2 how many pastes. The rest of a body with more pastes than that is not looked
-- at: all of them get the same answer.
-- Zero rows: that was the last.
SELECT page.content_hash, page.pastes, body.content_hash IS NULL AS has_no_content
FROM (SELECT content_hash, count(*) AS pastes
      FROM (SELECT content_hash FROM pastes
            WHERE content_hash > $1
              AND content_hash IS NOT NULL
              AND deletion_status NOT IN ('DELETION_IN_PROGRESS', 'DELETED')
            ORDER BY content_hash
            LIMIT $2::bigint) AS rows
      GROUP BY content_hash) AS page
LEFT JOIN content body ON body.content_hash = page.content_hash
ORDER BY page.content_hash
