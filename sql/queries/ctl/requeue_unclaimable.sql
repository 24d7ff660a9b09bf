-- Requeue: pastes that could not be claimed are tried again by the next claim.
-- $1 short codes (NULL = any), $2 a piece of the error (NULL = any).
DELETE FROM cleanup_unclaimable
WHERE ($1::text[] IS NULL OR short_code = ANY ($1))
  AND ($2::text IS NULL OR position($2 IN error) > 0)
RETURNING short_code
