-- Audit: which of these objects does no row know, or nothing but a sentinel?
-- $1 keys.
-- Zero rows for a key: a body, or an object that somebody will delete.
--
-- A key moves in one direction, each time in one transaction:
--   content.s3_key ─ decrement ─▶ pending_s3_keys of an open claim ─┬ finish ─▶ nowhere (the object is gone)
--                                                             ├ finish ─▶ pastes.pending_s3_key (refused)
--                                                             └ reset ──▶ pastes.pending_s3_key of its pending_owner
-- One statement has one snapshot, in which the key is in one of the three places. Asked in several
-- statements it could be overtaken: pastes (not there yet), reset commits, claims (not open any
-- more) makes an orphan of a debt.
SELECT listed.s3_key, body.content_hash IS NOT NULL AS is_sentinel
FROM unnest($1::text[]) AS listed (s3_key)
LEFT JOIN content body ON body.s3_key = listed.s3_key
WHERE (body.content_hash IS NULL
       OR body.content_hash = 'audit:'::bytea || convert_to(body.s3_key, 'UTF8'))
  -- A tombstone is never worked on again.
  AND NOT EXISTS (SELECT FROM pastes p
                  WHERE p.pending_s3_key = listed.s3_key AND p.deletion_status <> 'DELETED')
  -- NOT IN: hashed once. A join with what the planner knows nothing about becomes a nested loop.
  AND listed.s3_key NOT IN (SELECT unreferenced.s3_key
                            FROM deletion_claims claim, unnest(claim.pending_s3_keys) AS unreferenced (s3_key)
                            WHERE claim.finished_at IS NULL AND claim.reset_at IS NULL
                              AND unreferenced.s3_key IS NOT NULL)
