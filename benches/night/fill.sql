-- Test data for a nightly run: $rows expired and $rows live pastes. 60 % of the pastes have their own
-- content; the rest share content with another paste, expired or live. Neither due times nor short
-- codes correlate with the order of the table's pages.
SELECT setseed(0.42);

INSERT INTO pastes (short_code, content_hash, expires_at)
SELECT substr(md5(n::text), 1, 12),
       sha256((CASE WHEN n % 10 < 6 THEN n ELSE floor(random() * $rows * 2)::int / 10 * 10 END)::text::bytea),
       CASE WHEN n % 2 = 0
            THEN now() - interval '1 minute' - random() * interval '1 day'
            ELSE now() + interval '1 day' + random() * interval '30 days'
       END
FROM generate_series(0, $rows * 2 - 1) AS n
ORDER BY random();

INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
SELECT content_hash, encode(content_hash, 'hex') || '/' || substr(md5(random()::text), 1, 16),
       1000, count(*)
FROM pastes
GROUP BY content_hash;
