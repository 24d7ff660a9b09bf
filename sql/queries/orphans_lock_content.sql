-- Orphans: hold on to their bodies before they go back, in hash order as a release does, so that
-- the two never wait for each other in a circle. The trigger pastes_return takes the same locks,
-- in whatever order the rows come.
-- $1 short codes.
SELECT
FROM content
WHERE content_hash = ANY (ARRAY(SELECT content_hash FROM pastes WHERE short_code = ANY ($1)))
ORDER BY content_hash
FOR KEY SHARE
