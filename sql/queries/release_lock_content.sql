-- Release, second statement: lock the batch's content rows, in hash order so that two batches
-- that share bodies never wait for each other in a circle.
-- $1 content hashes, $2 claim id.
-- A hash that is missing from the answer has no content row: drift.
SELECT content_hash, s3_key, coalesce(size_bytes, 0)::bigint AS size_bytes,
       ref_count::bigint AS ref_count,
       -- Stored again since this batch was claimed: its references were never part of that count.
       created_at > (SELECT claimed_at FROM deletion_claims WHERE id = $2) AS is_newer
FROM content
WHERE content_hash = ANY ($1)
ORDER BY content_hash
FOR UPDATE
