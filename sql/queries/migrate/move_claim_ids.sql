-- Moves the sequence of claim ids past every id in use; never back. One transaction of two statements.
-- The lock keeps every claim out: one that took an id between the look and the move could otherwise get
-- past the highest, and the move would hand out its id again.
-- Parameters: none. No rows that matter.
LOCK TABLE deletion_claims IN SHARE ROW EXCLUSIVE MODE;
SELECT setval(sequence, highest)
FROM (SELECT pg_get_serial_sequence('deletion_claims', 'id')::regclass AS sequence) AS ids,
     (SELECT greatest((SELECT max(claim_id) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'),
                      (SELECT max(id) FROM deletion_claims)) AS highest) AS in_use
WHERE highest > coalesce(pg_sequence_last_value(sequence), 0);
