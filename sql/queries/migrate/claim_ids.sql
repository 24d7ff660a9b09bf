-- Will the sequence of claim ids return ids that are in use? It starts again after a restore of pastes
-- alone, a TRUNCATE … RESTART IDENTITY, or logical replication, which does not copy sequences. A new
-- claim would then take over the rows of an old one.
-- Parameters: none. Always one row: the `highest` id in use (0: none), the `last` one that the sequence
-- returned (0: none), and whether this login may move the sequence (`movable`).
SELECT coalesce(greatest((SELECT max(claim_id) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'),
                         (SELECT max(id) FROM deletion_claims)), 0) AS highest,
       CASE WHEN readable THEN coalesce(pg_sequence_last_value(sequence), 0)
            -- An estimate: every id in the table came from the sequence.
            ELSE coalesce((SELECT max(id) FROM deletion_claims), 0) END AS last,
       readable AND has_sequence_privilege(sequence, 'UPDATE') AS movable
FROM (SELECT sequence, has_sequence_privilege(sequence, 'SELECT') AS readable
      FROM (SELECT pg_get_serial_sequence('deletion_claims', 'id')::regclass AS sequence) AS found) AS ids;
