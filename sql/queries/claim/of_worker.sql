-- A claim whose answer was lost: which open claims of this worker does it not know of?
-- $1 worker uuid, $2 the claim ids it knows.
-- Zero rows: nothing was claimed behind its back.
SELECT id
FROM deletion_claims
WHERE worker = $1 AND finished_at IS NULL AND reset_at IS NULL AND id <> ALL ($2::bigint[])
