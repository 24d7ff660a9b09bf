-- Audit: about how many rows there are, by the planner's statistics; pages for a table that has
-- none yet. For the progress bar, and for cutting content into ranges.
SELECT coalesce(sum(rows) FILTER (WHERE relname = 'content'), 0)::bigint AS content,
       coalesce(sum(rows) FILTER (WHERE relname = 'pastes'), 0)::bigint AS pastes
FROM (SELECT relname,
             CASE WHEN reltuples >= 0 THEN reltuples ELSE 50 * pg_relation_size(oid) / 8192 END AS rows
      FROM pg_class WHERE oid IN ('content'::regclass, 'pastes'::regclass)) AS estimate
