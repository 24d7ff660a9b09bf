-- The size of pastes in pages, from its files: statistics may be old. A table that its owner has
-- partitioned is as large as the sum of its partitions.
-- Parameters: none. Always one row.
SELECT greatest(pg_relation_size('pastes'),
                (SELECT coalesce(sum(pg_relation_size(relid)), 0)
                 FROM pg_partition_tree('pastes')))::bigint
       / current_setting('block_size')::bigint AS pages
