-- Doctor: the rights that a worker needs according to sql/roles.sql, and whether this login and the
-- group role have them.
-- Parameters: none. One row for each right; `what` is its name for a message. No row for a table that
-- is missing: the check of the schema reports that.
WITH needed (target, privilege, columns) AS (VALUES
    ('pastes', 'DELETE', NULL),
    ('pastes', 'SELECT', '{short_code,expires_at,deletion_status,deletion_initiated_at,claim_id,attempts,retry_at,pending_s3_key,last_error,content_hash}'::name[]),
    ('pastes', 'UPDATE', '{deletion_status,deletion_initiated_at,claim_id,attempts,retry_at,pending_s3_key,last_error,content_hash}'),
    ('content', 'DELETE', NULL),
    ('content', 'SELECT', '{content_hash,s3_key,size_bytes,ref_count,created_at}'),
    ('content', 'UPDATE', '{ref_count,created_at}'),
    ('deletion_claims', 'SELECT', NULL),
    ('deletion_claims', 'INSERT', NULL),
    ('deletion_claims', 'UPDATE', NULL),
    ('cleanup_fleet', 'SELECT', NULL),
    ('cleanup_fleet', 'UPDATE', '{bucket,prefix}'),
    ('cleanup_migrations', 'SELECT', NULL),
    ('cleanup_audits', 'SELECT', NULL),
    ('cleanup_runs', 'SELECT', NULL),
    ('cleanup_runs', 'INSERT', NULL),
    ('cleanup_runs', 'UPDATE', NULL),
    ('cleanup_unclaimable', 'SELECT', NULL),
    ('cleanup_unclaimable', 'INSERT', NULL),
    ('cleanup_unclaimable', 'UPDATE', NULL),
    ('cleanup_unclaimable', 'DELETE', NULL)
)
SELECT format('%s on %s', privilege, target) AS what,
       has_table_privilege(found.oid, privilege) AS held,
       coalesce(has_table_privilege(worker.oid, found.oid, privilege), false) AS group_holds
FROM needed
JOIN pg_class found ON found.oid = to_regclass(target)
LEFT JOIN pg_roles worker ON worker.rolname = 'cleanup_worker'
WHERE columns IS NULL
UNION ALL
SELECT format('%s (%s) on %s', privilege, attname, target),
       has_column_privilege(attrelid, attnum, privilege),
       coalesce(has_column_privilege(worker.oid, attrelid, attnum, privilege), false)
FROM needed
JOIN pg_attribute ON attrelid = to_regclass(target) AND attname = ANY (columns)
LEFT JOIN pg_roles worker ON worker.rolname = 'cleanup_worker'
UNION ALL
SELECT format('%s on %s', privilege, found.relname),
       has_sequence_privilege(found.oid, privilege),
       coalesce(has_sequence_privilege(worker.oid, found.oid, privilege), false)
FROM unnest(ARRAY['SELECT', 'UPDATE']) AS privilege
JOIN pg_class claims ON claims.oid = to_regclass('deletion_claims')
JOIN pg_class found ON found.oid = pg_get_serial_sequence(claims.oid::regclass::text, 'id')::regclass
LEFT JOIN pg_roles worker ON worker.rolname = 'cleanup_worker'
