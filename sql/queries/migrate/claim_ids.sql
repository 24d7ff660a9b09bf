-- Are claim ids handed out that are in use already? After a restore of pastes alone, a TRUNCATE …
-- RESTART IDENTITY, or logical replication, which copies no sequences, they begin again, and a new
-- claim takes over the rows of an old one.
-- Parameters: none. Always one row: the `highest` id in use (0: none), the `last` one handed out (0:
-- none), and whether this login can move them (`movable`).
SELECT coalesce(greatest((SELECT max(claim_id) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'),
                         (SELECT max(id) FROM deletion_claims)), 0) AS highest,
       CASE WHEN readable THEN coalesce(pg_sequence_last_value(sequence), 0)
            -- A guess: an id that is in the table was handed out once.
            ELSE coalesce((SELECT max(id) FROM deletion_claims), 0) END AS last,
       readable AND has_sequence_privilege(sequence, 'UPDATE') AS movable
FROM (SELECT sequence, has_sequence_privilege(sequence, 'SELECT') AS readable
      FROM (SELECT pg_get_serial_sequence('deletion_claims', 'id')::regclass AS sequence) AS found) AS ids;
