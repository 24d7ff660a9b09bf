//! The exact rights of the groups, as the catalog lists them.

use super::world;
use crate::support::*;

/// Lists every right of the groups, and of PUBLIC, on any object of this database; one
/// line for each group and object. `GRANTABLE` marks rights with a grant option.
const RIGHTS: &str = "
    WITH given AS (
        SELECT relname::text AS thing, NULL::text AS piece, right_of.*
        FROM pg_class, aclexplode(relacl) AS right_of
        WHERE relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT relname, attname, right_of.*
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid, aclexplode(attacl) AS right_of
        WHERE relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT proname || '()', NULL, right_of.*
        FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS right_of
        WHERE pronamespace = 'public'::regnamespace
        UNION ALL
        SELECT 'schema ' || nspname, NULL, right_of.*
        FROM pg_namespace, aclexplode(nspacl) AS right_of
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
        UNION ALL
        SELECT 'database', NULL, right_of.*
        FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) AS right_of
        WHERE datname = current_database()
    ), named AS (
        SELECT CASE grantee WHEN 0 THEN 'public' ELSE grantee::regrole::text END AS grantee_name, thing,
               privilege_type || CASE WHEN is_grantable THEN ' GRANTABLE' ELSE '' END
               || coalesce(' (' || string_agg(piece, ', ' ORDER BY piece) || ')', '') AS allowed
        FROM given
        WHERE grantee = 0 OR grantee::regrole::text LIKE 'cleanup\\_%'
        GROUP BY grantee, thing, privilege_type, is_grantable, piece IS NULL
    )
    SELECT grantee_name || ' | ' || thing || ' | ' || string_agg(allowed, ', ' ORDER BY allowed)
    FROM named GROUP BY grantee_name, thing ORDER BY grantee_name COLLATE \"C\", thing COLLATE \"C\"";

/// All rights of the groups. `public` has the defaults of Postgres: functions run with the
/// caller's rights, so the right to call them grants nothing else.
pub(crate) const EXPECTED_RIGHTS: &str = "\
cleanup_auditor | cleanup_audits | INSERT, SELECT
cleanup_auditor | cleanup_canonical_key() | EXECUTE
cleanup_auditor | cleanup_fleet | SELECT
cleanup_auditor | cleanup_last_heartbeat() | EXECUTE
cleanup_auditor | cleanup_migrations | SELECT
cleanup_auditor | cleanup_runs | SELECT
cleanup_auditor | cleanup_totals | SELECT
cleanup_auditor | cleanup_unclaimable | SELECT
cleanup_auditor | content | DELETE, INSERT, SELECT, UPDATE (created_at, ref_count)
cleanup_auditor | deletion_claims | SELECT
cleanup_auditor | pastes | SELECT
cleanup_auditor | schema public | USAGE
cleanup_watchdog | cleanup_audits | SELECT
cleanup_watchdog | cleanup_canonical_key() | EXECUTE
cleanup_watchdog | cleanup_fleet | SELECT, UPDATE (watchdog_at)
cleanup_watchdog | cleanup_last_heartbeat() | EXECUTE
cleanup_watchdog | cleanup_migrations | SELECT
cleanup_watchdog | cleanup_runs | DELETE, SELECT, UPDATE (counted)
cleanup_watchdog | cleanup_totals | INSERT, SELECT, UPDATE
cleanup_watchdog | cleanup_unclaimable | SELECT
cleanup_watchdog | deletion_claims | DELETE, SELECT, UPDATE
cleanup_watchdog | pastes | DELETE, \
SELECT (attempts, claim_id, content_hash, deletion_initiated_at, deletion_status, expires_at, \
last_error, pending_s3_key, retry_at, short_code), \
UPDATE (attempts, claim_id, content_hash, deletion_initiated_at, deletion_status, last_error, \
pending_s3_key, retry_at)
cleanup_watchdog | schema public | USAGE
cleanup_worker | cleanup_audits | SELECT
cleanup_worker | cleanup_canonical_key() | EXECUTE
cleanup_worker | cleanup_fleet | SELECT, UPDATE (bucket, prefix)
cleanup_worker | cleanup_last_heartbeat() | EXECUTE
cleanup_worker | cleanup_migrations | SELECT
cleanup_worker | cleanup_runs | INSERT, SELECT, UPDATE
cleanup_worker | cleanup_unclaimable | DELETE, INSERT, SELECT, UPDATE
cleanup_worker | content | DELETE, SELECT (content_hash, created_at, ref_count, s3_key, size_bytes), \
UPDATE (created_at, ref_count)
cleanup_worker | deletion_claims | INSERT, SELECT, UPDATE
cleanup_worker | deletion_claims_id_seq | SELECT, UPDATE
cleanup_worker | pastes | DELETE, \
SELECT (attempts, claim_id, content_hash, deletion_initiated_at, deletion_status, expires_at, \
last_error, pending_s3_key, retry_at, short_code), \
UPDATE (attempts, claim_id, content_hash, deletion_initiated_at, deletion_status, last_error, \
pending_s3_key, retry_at)
cleanup_worker | schema public | USAGE
cleanup_writer | content | INSERT (content_hash, created_at, ref_count, s3_key, size_bytes), \
SELECT, UPDATE (ref_count)
cleanup_writer | paste_expire_now() | EXECUTE
cleanup_writer | paste_extend() | EXECUTE
cleanup_writer | paste_put() | EXECUTE
cleanup_writer | pastes | INSERT (content_hash, created_at, expires_at, short_code), SELECT, \
UPDATE (attempts, expires_at, last_error, retry_at)
cleanup_writer | schema public | USAGE
public | cleanup_canonical_key() | EXECUTE
public | cleanup_last_heartbeat() | EXECUTE
public | database | CONNECT, TEMPORARY
public | paste_expire_now() | EXECUTE
public | paste_extend() | EXECUTE
public | paste_put() | EXECUTE
public | pastes_guard() | EXECUTE
public | schema public | USAGE";

pub(crate) async fn rights(world: &World) -> String {
    let rows = world.db.query(RIGHTS, &[]).await.expect("rights");
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_have_exactly_the_expected_rights() {
    let world = world().await;
    assert_eq!(rights(&world).await, EXPECTED_RIGHTS);
    let groups = "('cleanup_worker', 'cleanup_watchdog', 'cleanup_auditor', 'cleanup_writer')";
    let powerful = format!(
        "SELECT count(*) FROM pg_roles WHERE rolname IN {groups}
           AND (rolsuper OR rolcreaterole OR rolcreatedb OR rolcanlogin OR rolreplication
                OR rolbypassrls OR EXISTS (SELECT FROM pg_auth_members WHERE member = pg_roles.oid)
                OR EXISTS (SELECT FROM pg_class WHERE relowner = pg_roles.oid)
                OR EXISTS (SELECT FROM pg_proc WHERE proowner = pg_roles.oid))"
    );
    assert_eq!(world.count(&powerful).await, 0, "no rights but those above");
    let elevated = "SELECT string_agg(proname || ' ' || proconfig[1], ', ') FROM pg_proc
                    WHERE pronamespace = 'public'::regnamespace AND prosecdef";
    let trigger = "pastes_verify_content search_path=public, pg_temp";
    assert_eq!(
        world.text(elevated).await.as_deref(),
        Some(trigger),
        "no other function runs with its owner's rights"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn granting_the_roles_again_revokes_surplus_rights() {
    let world = world().await;
    world
        .run_sql(
            "GRANT ALL ON pastes TO cleanup_worker;
             GRANT SELECT (s3_key) ON content TO cleanup_watchdog;
             GRANT UPDATE ON deletion_claims TO cleanup_auditor;
             GRANT USAGE ON SEQUENCE deletion_claims_id_seq TO cleanup_writer;
             GRANT DELETE ON content TO cleanup_writer WITH GRANT OPTION",
        )
        .await;
    assert_ne!(rights(&world).await, EXPECTED_RIGHTS);
    let again = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(again.code(), 0, "{}", again.stderr());
    assert_eq!(rights(&world).await, EXPECTED_RIGHTS);
}
