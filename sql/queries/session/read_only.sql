-- Does this session accept no writes? "on" on a standby, and with default_transaction_read_only. Checked
-- before a pooled connection is used again.
-- Parameters: none. Always one row.
SHOW transaction_read_only
