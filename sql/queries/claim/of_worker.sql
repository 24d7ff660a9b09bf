-- Release and `cleanupctl reset`: the open claims of a worker that are not in $2. A worker passes
-- the claims that it knows, and gets its unconfirmed claims; `cleanupctl reset` passes none.
-- $1 worker uuid, $2 claim ids to leave out.
-- Zero rows: there are no others.
SELECT id
FROM deletion_claims
WHERE worker = $1 AND finished_at IS NULL AND reset_at IS NULL AND id <> ALL ($2::bigint[])
