-- Start of a run: deletes entries for rows that have since been claimed or deleted, and entries that were
-- written while the server's clock was ahead, which would hide their rows until that time. The latter are
-- tried again, and recorded again if they are refused.
-- Parameters: none.
DELETE FROM cleanup_unclaimable
WHERE found_at > now() + interval '1 minute'
   -- The longest wait: see claim/row_by_row/add_unclaimable.sql.
   OR retry_at > now() + interval '30 days 1 minute'
   OR NOT EXISTS (SELECT FROM pastes
                  WHERE pastes.short_code = cleanup_unclaimable.short_code
                    AND deletion_status = 'NOT_EXPIRED')
