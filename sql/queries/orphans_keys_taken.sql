-- Orphans: keys that rows have taken over leave the ended claims that kept them.
-- $1 claim ids, $2 keys.
UPDATE deletion_claims
SET (heirs, doomed_keys) = (
    SELECT array_agg(kept.heir), array_agg(kept.s3_key)
    FROM unnest(heirs, doomed_keys) AS kept (heir, s3_key)
    WHERE kept.s3_key <> ALL ($2::text[]))
WHERE id = ANY ($1::bigint[])
