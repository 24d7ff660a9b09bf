-- How large is the table, in pages? By the files, not by statistics that may be old.
-- A table that its owner has partitioned is as large as its parts.
SELECT greatest(pg_relation_size('pastes'),
                (SELECT coalesce(sum(pg_relation_size(relid)), 0)
                 FROM pg_partition_tree('pastes')))::bigint
       / current_setting('block_size')::bigint AS pages
