//! Migrations that are repeated, run at the same time, or were killed: the next one finishes the
//! work, and does nothing twice.

use tokio_postgres::Client;

use super::{BULK, run_worker, schema};
use crate::support::{
    adopted::{EXISTING_TABLES, migrate_ok, plain_put, world_with},
    *,
};

/// Leaves an invalid index of this name, as a failed concurrent build does.
async fn leave_invalid(db: &Client, index: &str) {
    let _ = db.batch_execute(&format!("DROP INDEX IF EXISTS {index}")).await;
    let fails = format!("CREATE UNIQUE INDEX CONCURRENTLY {index} ON pastes ((1))");
    db.batch_execute(&fails).await.expect_err("a build that fails");
}

const VALID_DUE_INDEX: &str = "
    SELECT count(*) FROM pg_index WHERE indexrelid = 'pastes_due_idx'::regclass AND indisvalid
    AND NOT indisunique AND pg_get_indexdef(indexrelid) LIKE '%COALESCE(retry_at, expires_at)%'";

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_index_is_built_again_by_the_first_migration_and_by_later_ones() {
    let world = world_with(EXISTING_TABLES).await;
    world.run_sql(BULK).await;
    leave_invalid(&world.db, "pastes_due_idx").await;
    migrate_ok(&world, &[]).await;
    assert_eq!(world.count(VALID_DUE_INDEX).await, 1);
    leave_invalid(&world.db, "pastes_due_idx").await;
    let again = migrate_ok(&world, &[]).await;
    assert!(again.stderr().contains("building index pastes_due_idx"), "{}", again.stderr());
    assert_eq!(world.count(VALID_DUE_INDEX).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_migrations_at_once_both_succeed_and_only_one_does_the_work() {
    let world = world_with(EXISTING_TABLES).await;
    world.run_sql(BULK).await;
    let (one, two) = tokio::join!(migrate_ok(&world, &[]), migrate_ok(&world, &[]));
    let mut printed = [one.stdout(), two.stdout()];
    printed.sort();
    assert!(printed[0].starts_with("migrated: V1 tables, "), "{printed:?}");
    assert_eq!(printed[1], "the schema is current\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_migration_finds_nothing_to_do() {
    let world = world_with("").await;
    let first = migrate_ok(&world, &[]).await;
    assert!(first.stdout().starts_with("migrated: V1 tables, "), "{}", first.stdout());
    let before = schema(&world).await;
    let second = migrate_ok(&world, &[]).await;
    assert_eq!(
        (second.stdout().as_str(), second.stderr().as_str()),
        ("the schema is current\n", "")
    );
    assert_eq!(schema(&world).await, before);
}

/// Starts a migration that has to wait for this transaction, kills it while it waits, and returns
/// when its server session has ended, too.
async fn kill_a_migration(world: &World, blocking: &str, blocked: &str) {
    world.run_sql(BULK).await;
    plain_put(world, "live", "now() + interval '1 hour'").await;
    let holder = connect(&world.database_url).await;
    holder.batch_execute(&format!("BEGIN; {blocking}")).await.expect("hold");
    let migrating = world.program("cleanupctl").args(&["migrate"]).start();
    world.until("the migration is blocked", blocked).await;
    migrating.signal(Signal::KILL);
    assert_eq!(migrating.end().await.code(), -1, "killed");
    // TCP keepalives would detect the dead client, but that takes longer than a test should.
    let session = "FROM pg_stat_activity WHERE datname = current_database()
                   AND application_name = 'cleanupctl'";
    world.count(&format!("SELECT count(pg_terminate_backend(pid)) {session}")).await;
    world.until("its session is gone", &format!("SELECT count(*) = 0 {session}")).await;
    holder.batch_execute("ROLLBACK").await.expect("let go");
}

async fn assert_next_migration_finishes(world: &World) {
    let done = "SELECT count(*) FROM cleanup_migrations WHERE version = 3";
    assert_eq!(world.count(done).await, 0, "it was killed in the middle");
    migrate_ok(world, &[]).await;
    assert_eq!(world.count(done).await, 1);
    assert_eq!(run_worker(world).await["rows_deleted"], 20_000);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_killed_while_it_waits_for_the_table_is_finished_by_the_next_one() {
    let world = world_with(EXISTING_TABLES).await;
    let read = "LOCK TABLE pastes IN ACCESS SHARE MODE";
    let blocked = "SELECT count(*) > 0 FROM pg_locks
                   WHERE NOT granted AND relation = 'pastes'::regclass";
    kill_a_migration(&world, read, blocked).await;
    assert_next_migration_finishes(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_killed_while_it_builds_an_index_is_finished_by_the_next_one() {
    let world = world_with(EXISTING_TABLES).await;
    // A concurrent index build waits for every older transaction that could see old rows.
    let old = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    let invalid = "SELECT count(*) > 0 FROM pg_index WHERE NOT indisvalid";
    kill_a_migration(&world, old, invalid).await;
    world.until("the half-built index is left behind", invalid).await;
    assert_next_migration_finishes(&world).await;
    assert_eq!(world.count("SELECT count(*) FROM pg_index WHERE NOT indisvalid").await, 0);
}
