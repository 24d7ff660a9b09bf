-- Decrement, second statement: locks the batch's content rows, in hash order, so that two batches that
-- share content never deadlock. (Row by row, SKIP LOCKED is appended and nothing is waited for.)
-- $1 content hashes, $2 claim id.
-- Zero rows for a hash: it has no content row (drift), or, with SKIP LOCKED, the row is locked.
SELECT content_hash, s3_key, coalesce(size_bytes, 0)::bigint AS size_bytes,
       coalesce(ref_count, 0)::bigint AS ref_count,
       -- Stored again since this batch was claimed: the count never included its references.
       coalesce(created_at > (SELECT claimed_at FROM deletion_claims WHERE id = $2), false)
           AS is_newer,
       -- Written while the clock was ahead: whether it was stored again is unknown.
       coalesce(created_at > clock_timestamp(), false) AS is_from_the_future,
       -- As in content_odd_key_idx, which is empty almost everywhere.
       EXISTS (SELECT FROM content odd
               WHERE odd.s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)'
                  OR octet_length(odd.s3_key) <> length(odd.s3_key)) AS keys_are_odd
FROM content
WHERE content_hash = ANY ($1)
ORDER BY content_hash
FOR UPDATE OF content
