-- Audit: records the result, for status and metrics.
-- $1 reached the end of bucket and tables, $2 continues where the last audit ended (--after),
-- $3 objects, $4 orphans, $5 missing objects, $6 wrong counts (including unreferenced content, and
-- pastes without a content row), $7 findings that were not repaired.
-- An audit that continues an incomplete one adds its numbers to that one's.
INSERT INTO cleanup_audits
    (complete, objects, orphans, missing_objects, wrong_counts, findings_left)
SELECT $1::boolean,
       coalesce(earlier.objects, 0) + $3::bigint,
       coalesce(earlier.orphans, 0) + $4::bigint,
       coalesce(earlier.missing_objects, 0) + $5::bigint,
       coalesce(earlier.wrong_counts, 0) + $6::bigint,
       coalesce(earlier.findings_left, 0) + $7::bigint
FROM (VALUES (1)) AS one
LEFT JOIN (SELECT * FROM cleanup_audits ORDER BY id DESC LIMIT 1) AS earlier
       ON $2::boolean AND NOT earlier.complete
