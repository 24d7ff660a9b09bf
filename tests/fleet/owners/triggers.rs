//! The triggers that guard rows in progress work in every session. If they were changed, or their
//! schema renamed, programs refuse to start and `cleanupctl migrate` repairs them. (Missing and
//! disabled triggers: see `reset.rs`.)

use crate::support::{
    adopted::{EXISTING_TABLES, migrate_ok, world_with},
    findings::diagnose,
    *,
};
use paste_cleanup::postgres::describe;
use tokio_postgres::error::SqlState;

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_import_cannot_revive_a_paste_whose_reference_was_decremented() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    let import = connect(&world.database_url).await;
    import.batch_execute("SET session_replication_role = replica").await.expect("replica");
    let revive = "UPDATE pastes SET expires_at = now() + interval '1 day'";
    let refused = import.batch_execute(revive).await.expect_err("refused");
    assert_eq!(refused.code(), Some(&SqlState::OBJECT_IN_USE), "{refused:?}");
    let reset = "UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL";
    import.batch_execute(reset).await.expect("a reset by hand");
    let hash = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL";
    assert_eq!(world.count(hash).await, 0, "it is reset without its deleted content");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_schema_rename_programs_name_the_function_that_migrate_repairs() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    let dead = world.worker().await;
    claim_some(&dead, 1).await;
    world.expire_leases(7201.0).await;
    world.run_sql("ALTER SCHEMA public RENAME TO \"App\"; SET search_path = \"App\"").await;
    let program = |name| world.program(name).env("CLEANUP_POSTGRES_SCHEMA", "App");
    let words =
        ["pastes_verify_content has the search_path public, pg_temp", "run `cleanupctl migrate`"];
    for (name, args) in [("cleanup-worker", "run"), ("cleanup-watchdog", "--once")] {
        program(name).args(&[args]).output().await.assert_refused(1, &words);
    }
    diagnose(program("cleanupctl")).await.assert_says("schema", "failure", &words);
    let reset = "UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL";
    let failed = world.db.batch_execute(reset).await.expect_err("a table that is not found");
    let described = describe(&failed);
    let place = "\"content\" does not exist (SQLSTATE 42P01) in the function";
    assert!(
        described.contains(place) && described.contains("pastes_verify_content()"),
        "{described}"
    );

    let migrated = program("cleanupctl").args(&["migrate"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    assert!(migrated.stdout().contains("repaired: the trigger function pastes_verify_content"));
    let once = program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 0, "{}", once.stderr());
    let due = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
               AND content_hash IS NOT NULL";
    assert_eq!(world.count(due).await, 1, "the claim of the dead worker was reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nullable_created_at_gets_a_default_and_a_warning() {
    let nullable = "ALTER TABLE content ADD created_at timestamptz";
    let world = world_with(&format!("{EXISTING_TABLES}; {nullable}")).await;
    let migrated = migrate_ok(&world, &[]).await;
    let warning = "warning: content.created_at is nullable";
    assert!(migrated.stderr().contains(warning), "{}", migrated.stderr());
    world.run_sql("INSERT INTO content (content_hash, s3_key) VALUES ('a', 'a')").await;
    assert_eq!(world.count("SELECT count(created_at) FROM content").await, 1);
    world.run_sql("ALTER TABLE content ALTER created_at DROP DEFAULT").await;
    migrate_ok(&world, &[]).await;
    world.run_sql("INSERT INTO content (content_hash, s3_key) VALUES ('b', 'b')").await;
    assert_eq!(world.count("SELECT count(created_at) FROM content").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_name_needs_quotes_gets_the_trigger_function() {
    let world = world_with(EXISTING_TABLES).await;
    let owner = format!("Owner {}", uuid::Uuid::new_v4().simple());
    world.run_sql(&format!("CREATE ROLE \"{owner}\"")).await;
    world.run_sql(&format!("ALTER TABLE content OWNER TO \"{owner}\"")).await;
    migrate_ok(&world, &[]).await;
    let owned = "SELECT rolname FROM pg_proc f JOIN pg_roles r ON r.oid = f.proowner
                 WHERE f.oid = 'pastes_verify_content()'::regprocedure";
    assert_eq!(world.text(owned).await, Some(owner.clone()));
    world.run_sql(&format!("REASSIGN OWNED BY \"{owner}\" TO postgres")).await;
    world.run_sql(&format!("DROP OWNED BY \"{owner}\"; DROP ROLE \"{owner}\"")).await;
}
