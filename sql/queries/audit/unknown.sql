-- Audit: which of these objects does no row know, or only a sentinel?
-- $1 keys.
-- Zero rows for a key: it belongs to a content row, or its delete is pending.
--
-- A key moves in one direction, each time in one transaction:
--   content.s3_key ─ decrement ─▶ pending_s3_keys of an open claim
--     ├ finish ─▶ nowhere (the object is deleted)
--     ├ finish ─▶ pastes.pending_s3_key (S3 refused the delete)
--     └ reset ──▶ pastes.pending_s3_key of its pending owner
-- One statement has one snapshot, which shows the key in one of the three places. With several
-- statements a reset could commit in between: pastes is read first and does not have the key yet, the
-- reset moves it, deletion_claims is read and does not have it any more. An object with a pending
-- delete would then look like an orphan.
SELECT listed.s3_key, content.content_hash IS NOT NULL AS is_sentinel
FROM unnest($1::text[]) AS listed (s3_key)
LEFT JOIN content ON content.s3_key = listed.s3_key
WHERE (content.content_hash IS NULL
       OR content.content_hash = 'audit:'::bytea || convert_to(content.s3_key, 'UTF8'))
  -- A tombstone is never claimed again.
  AND NOT EXISTS (SELECT FROM pastes p
                  WHERE p.pending_s3_key = listed.s3_key AND p.deletion_status <> 'DELETED')
  -- NOT IN is hashed once. A join would become a nested loop: the planner has no statistics on
  -- the arrays.
  AND listed.s3_key NOT IN (SELECT pending.s3_key
                            FROM deletion_claims claim, unnest(claim.pending_s3_keys) AS pending (s3_key)
                            WHERE claim.finished_at IS NULL AND claim.reset_at IS NULL
                              AND pending.s3_key IS NOT NULL)
