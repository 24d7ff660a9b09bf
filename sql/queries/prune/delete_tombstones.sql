-- Purge: deletes tombstones, which are locked.
-- $1 short codes.
-- Fewer rows than $1: a trigger swallows the DELETE.
DELETE FROM pastes WHERE short_code = ANY ($1)
