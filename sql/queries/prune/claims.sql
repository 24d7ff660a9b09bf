-- Prune: deletes ended claims after retention.history. Never one that still has keys of objects (see
-- reset/end_claim.sql), that is not in the totals yet, or whose rows could not be reset: it alone records
-- whether their references were subtracted.
-- $1 retention in seconds, $2 claims per statement.
-- Fewer rows than $2: none are left.
DELETE FROM deletion_claims
WHERE id IN (
    SELECT id FROM deletion_claims
    WHERE (finished_at IS NOT NULL OR reset_at IS NOT NULL)
      AND coalesce(finished_at, reset_at) < now() - $1::float8 * interval '1 second'
      AND counted
      AND pending_s3_keys IS NULL
      AND NOT EXISTS (SELECT FROM pastes
                      WHERE pastes.claim_id = deletion_claims.id
                        AND deletion_status = 'DELETION_IN_PROGRESS')
    ORDER BY coalesce(finished_at, reset_at)
    LIMIT $2::int)
