-- Does this session take no writes? "on" on a standby, and where default_transaction_read_only says
-- so. Asked before a connection of a pool is used again.
SHOW transaction_read_only
