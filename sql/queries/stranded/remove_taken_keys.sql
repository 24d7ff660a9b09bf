-- Stranded rows: removes keys that rows have taken over from the ended claims that kept them.
-- $1 claim ids, $2 keys.
UPDATE deletion_claims
SET (pending_owners, pending_s3_keys) = (
    SELECT array_agg(kept.pending_owner), array_agg(kept.s3_key)
    FROM unnest(pending_owners, pending_s3_keys) AS kept (pending_owner, s3_key)
    WHERE kept.s3_key <> ALL ($2::text[]))
WHERE id = ANY ($1::bigint[])
