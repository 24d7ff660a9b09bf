-- Group roles with the least privileges that each program needs. `cleanupctl migrate --roles` runs this
-- file after the migrations, as a role that may create roles; it may run again at any time.
-- The groups cannot log in: GRANT cleanup_worker TO <the login of your workers>, and so on.
-- Roles belong to the whole server, the privileges below to this database. On the nine tables a group
-- has exactly these privileges: each step revokes all and grants them again in one transaction, so that
-- running programs are not affected. Grant further privileges to your logins, not to these groups.
-- Of `pastes` and `content`, which may have columns of their own, the fleet can read only the columns
-- that it needs.

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
            NULL; -- a migration of another database on this server has just created it
        END;
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO cleanup_worker, cleanup_watchdog, cleanup_auditor, cleanup_writer',
                   current_schema());
END $$;

-- step: roles: the worker
-- Claims, decrements, finishes and releases. It cannot change when a paste expires.
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
-- To move claim ids past those in use after a restore. INSERT needs no privilege on the sequence.
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
-- Resets claims, purges tombstones, counts and prunes history. It cannot change content.
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
-- Reads everything and records its findings. Writes only content, for repairs: it inserts a sentinel
-- before an orphan is deleted, corrects counts, and deletes unreferenced content.
REVOKE ALL ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
              cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable FROM cleanup_auditor;
GRANT SELECT ON pastes, content, deletion_claims, cleanup_fleet, cleanup_migrations,
                cleanup_runs, cleanup_totals, cleanup_audits, cleanup_unclaimable TO cleanup_auditor;
GRANT INSERT, DELETE, UPDATE (ref_count, created_at) ON content TO cleanup_auditor;
GRANT INSERT ON cleanup_audits TO cleanup_auditor;

-- step: roles: functions that the fleet's statements call
-- For databases where EXECUTE was revoked from PUBLIC.
GRANT EXECUTE ON FUNCTION cleanup_last_heartbeat(deletion_claims), cleanup_canonical_key(text)
   TO cleanup_worker, cleanup_watchdog, cleanup_auditor;

-- step: roles: the paste service
-- The three functions, and what they do with the caller's rights: no DELETE, no change of status.
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
