-- Requeues unclaimable pastes: the next claim tries them again.
-- $1 short codes (NULL = any), $2 part of the error (NULL = any).
-- Zero rows: there are none.
DELETE FROM cleanup_unclaimable
WHERE ($1::text[] IS NULL OR short_code = ANY ($1))
  AND ($2::text IS NULL OR position($2 IN error) > 0)
RETURNING short_code
