-- Doctor: does an acknowledged commit survive a crash? The values are those of this session, which is
-- started like every session of the fleet.
-- Parameters: none. Always one row.
SELECT current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit
