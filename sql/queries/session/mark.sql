-- Marks this session, not just this transaction. $1 a mark that nobody else uses. Always one row.
SELECT set_config('paste_cleanup.session', $1, false)
