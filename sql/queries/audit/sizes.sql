-- Audit: the approximate number of rows, from the planner's statistics, or from the number of pages if
-- a table has no statistics yet. For the progress bar, and for cutting content into ranges.
-- Parameters: none. Always one row.
SELECT coalesce(sum(rows) FILTER (WHERE relname = 'content'), 0)::bigint AS content,
       coalesce(sum(rows) FILTER (WHERE relname = 'pastes'), 0)::bigint AS pastes
FROM (SELECT relname,
             CASE WHEN reltuples >= 0 THEN reltuples ELSE 50 * pg_relation_size(oid) / 8192 END AS rows
      FROM pg_class WHERE oid IN ('content'::regclass, 'pastes'::regclass)) AS estimate
