-- Marks this session, not just this transaction.
-- $1 a unique mark. Always one row.
SELECT set_config('paste_cleanup.session', $1, false)
