-- Does this session have the mark?
-- $1 mark. Always one row.
SELECT coalesce(current_setting('paste_cleanup.session', true), '') = $1 AS marked
