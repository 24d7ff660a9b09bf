-- Decrement, second statement: lock the batch's content rows, in hash order so that two batches
-- that share bodies never wait for each other in a circle. (A careful try appends SKIP LOCKED, and
-- waits for nobody.)
-- $1 content hashes, $2 claim id.
-- A hash that is missing from the answer has no content row: drift. (Or it is locked, see above.)
SELECT content_hash, s3_key, coalesce(size_bytes, 0)::bigint AS size_bytes,
       coalesce(ref_count, 0)::bigint AS ref_count,
       -- Stored again since this batch was claimed: its references were never part of that count.
       coalesce(created_at > (SELECT claimed_at FROM deletion_claims WHERE id = $2), false)
           AS is_newer,
       -- Cannot be true: from when the clock was ahead. Whether it was stored again is not known then.
       coalesce(created_at > clock_timestamp(), false) AS is_from_the_future,
       -- As in content_odd_key_idx, which is empty almost everywhere.
       EXISTS (SELECT FROM content odd
               WHERE odd.s3_key ~ '^/|//|/$|\\|(^|/)\.\.?(/|$)'
                  OR octet_length(odd.s3_key) <> length(odd.s3_key)) AS keys_are_odd
FROM content
WHERE content_hash = ANY ($1)
ORDER BY content_hash
FOR UPDATE OF content
