-- Reset of a claim that was not released: hold on to its bodies before its rows go back, in hash
-- order as a release does, so that the two never wait for each other in a circle. The trigger
-- pastes_return takes the same locks, in whatever order the rows come.
-- $1 claim id.
SELECT
FROM content
WHERE content_hash = ANY (ARRAY(SELECT content_hash FROM pastes
                                WHERE claim_id = $1 AND deletion_status = 'DELETION_IN_PROGRESS'))
ORDER BY content_hash
FOR KEY SHARE
