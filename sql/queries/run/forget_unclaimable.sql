-- Start of a run: deletes entries for rows that have since been claimed or deleted.
-- Parameters: none.
DELETE FROM cleanup_unclaimable
WHERE NOT EXISTS (SELECT FROM pastes
                  WHERE pastes.short_code = cleanup_unclaimable.short_code
                    AND deletion_status = 'NOT_EXPIRED')
