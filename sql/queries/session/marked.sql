-- Does this session bear the mark $1? Always one row.
SELECT coalesce(current_setting('paste_cleanup.session', true), '') = $1 AS marked
