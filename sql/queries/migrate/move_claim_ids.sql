-- Moves the sequence of claim ids past every id in use, never back. Two statements, one transaction.
-- The lock keeps out every claim: one that took an id between the read and setval() could get past the
-- highest id in use, and the sequence would return its id again.
-- Parameters: none. The rows do not matter.
LOCK TABLE deletion_claims IN SHARE ROW EXCLUSIVE MODE;
SELECT setval(sequence, highest)
FROM (SELECT pg_get_serial_sequence('deletion_claims', 'id')::regclass AS sequence) AS ids,
     (SELECT greatest((SELECT max(claim_id) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'),
                      (SELECT max(id) FROM deletion_claims)) AS highest) AS in_use
WHERE highest > coalesce(pg_sequence_last_value(sequence), 0);
