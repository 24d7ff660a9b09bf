-- Group roles with the least each program needs. Run by `cleanupctl migrate --roles` after the
-- migrations, by someone who may create roles; may run again at any time.
-- They cannot log in: GRANT cleanup_worker TO <the login of your workers>, and so on.
-- Roles belong to the whole server, the rights below to this database. In the nine tables a group
-- has exactly these: each step takes away what it finds and grants anew, in one transaction, so
-- that nobody at work notices. More for your own purposes belongs to your logins.
-- Of `pastes` and `content`, which may hold more than the fleet knows of, the fleet sees only the
-- columns that it needs.

-- step: roles: create the groups
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['cleanup_worker', 'cleanup_watchdog', 'cleanup_auditor', 'cleanup_writer']
    LOOP
        BEGIN
            IF to_regrole(wanted) IS NULL THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- a migration of another database on this server was quicker
        END;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO cleanup_worker, cleanup_watchdog, cleanup_auditor, cleanup_writer',
                   current_schema());
END $$;

-- step: roles: the worker
-- claims, decrements, finishes, releases. It never changes when a paste expires.
REVOKE ALL ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
              cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable FROM cleanup_worker;
GRANT DELETE,
      SELECT (short_code, expires_at, deletion_status, deletion_initiated_at, claim_id, attempts,
              retry_at, pending_s3_key, last_error, content_hash),
      UPDATE (deletion_status, deletion_initiated_at, claim_id, attempts, retry_at, pending_s3_key,
              last_error, content_hash)
   ON pastes TO cleanup_worker;
GRANT DELETE, SELECT (content_hash, s3_key, size_bytes, ref_count, created_at),
      UPDATE (ref_count, created_at)
   ON content TO cleanup_worker;
GRANT SELECT, INSERT, UPDATE ON deletion_claims TO cleanup_worker;
-- To move claim ids past those in use after a restore. Inserting needs no right on the sequence.
DO $$
DECLARE
    sequence text := pg_get_serial_sequence('deletion_claims', 'id');
BEGIN
    EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM cleanup_worker, cleanup_watchdog, cleanup_auditor, cleanup_writer', sequence);
    EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE %s TO cleanup_worker', sequence);
END $$;
GRANT SELECT, UPDATE (bucket, prefix) ON cleanup_fleet TO cleanup_worker;
GRANT SELECT ON cleanup_migrations, cleanup_audits TO cleanup_worker;
GRANT SELECT, INSERT, UPDATE ON cleanup_runs TO cleanup_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON cleanup_unclaimable TO cleanup_worker;

-- step: roles: the watchdog
-- resets claims, purges tombstones, counts and prunes history. It never touches a count or a body.
REVOKE ALL ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
              cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable FROM cleanup_watchdog;
GRANT DELETE,
      SELECT (short_code, expires_at, deletion_status, deletion_initiated_at, claim_id, attempts,
              retry_at, pending_s3_key, last_error, content_hash),
      UPDATE (deletion_status, deletion_initiated_at, claim_id, attempts, retry_at, pending_s3_key,
              last_error, content_hash)
   ON pastes TO cleanup_watchdog;
GRANT SELECT, UPDATE, DELETE ON deletion_claims TO cleanup_watchdog;
GRANT SELECT ON cleanup_fleet, cleanup_migrations, cleanup_audits, cleanup_unclaimable TO cleanup_watchdog;
GRANT UPDATE (watchdog_at) ON cleanup_fleet TO cleanup_watchdog;
GRANT SELECT, UPDATE (counted), DELETE ON cleanup_runs TO cleanup_watchdog;
GRANT SELECT, INSERT, UPDATE ON cleanup_totals TO cleanup_watchdog;

-- step: roles: the auditor
-- reads everything; notes what it found; writes only content, for repairs: sentinel rows before an orphan is deleted,
-- recounts, and rows that nothing references.
REVOKE ALL ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
              cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable FROM cleanup_auditor;
GRANT SELECT ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
                cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable TO cleanup_auditor;
GRANT INSERT, DELETE, UPDATE (ref_count, created_at) ON content TO cleanup_auditor;
GRANT INSERT ON cleanup_audits TO cleanup_auditor;

-- step: roles: functions that statements of the fleet call
-- For databases where functions do not belong to everybody.
GRANT EXECUTE ON FUNCTION cleanup_last_heartbeat(deletion_claims), cleanup_canonical_key(text)
   TO cleanup_worker, cleanup_watchdog, cleanup_auditor;

-- step: roles: the paste service
-- The three functions and what they do with the caller's rights: no DELETE, no status.
REVOKE ALL ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
              cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable FROM cleanup_writer;
GRANT EXECUTE ON FUNCTION paste_put(text, bytea, text, bigint, timestamptz),
                          paste_extend(text, timestamptz), paste_expire_now(text)
   TO cleanup_writer;
GRANT SELECT, INSERT (short_code, content_hash, created_at, expires_at),
      UPDATE (expires_at, retry_at, attempts, last_error)
   ON pastes TO cleanup_writer;
GRANT SELECT, INSERT (content_hash, s3_key, size_bytes, ref_count, created_at), UPDATE (ref_count)
   ON content TO cleanup_writer;
