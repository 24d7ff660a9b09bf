-- Purge: tombstones past their retention go. They are locked.
-- $1 short codes.
DELETE FROM pastes WHERE short_code = ANY ($1)
