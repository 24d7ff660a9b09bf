-- Start of a run: rows that could not be claimed and have been claimed or deleted since.
DELETE FROM cleanup_unclaimable
WHERE NOT EXISTS (SELECT FROM pastes
                  WHERE pastes.short_code = cleanup_unclaimable.short_code
                    AND deletion_status = 'NOT_EXPIRED')
