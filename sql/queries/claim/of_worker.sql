-- The open claims of a worker, except those it knows: after a claim whose answer was lost, the
-- unconfirmed ones.
-- $1 worker uuid, $2 known claim ids.
-- Zero rows: there are no others.
SELECT id
FROM deletion_claims
WHERE worker = $1 AND finished_at IS NULL AND reset_at IS NULL AND id <> ALL ($2::bigint[])
