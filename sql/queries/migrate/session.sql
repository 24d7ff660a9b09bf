-- Settings of the session that migrates. A step may take long (statement_timeout off), but must not wait
-- long for a lock: every later statement on the table queues behind it.
-- Parameters: none. No rows.
SET client_min_messages = warning;
SET default_transaction_isolation = 'read committed';
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET lock_timeout = '2s';
