//! Existing tables are adopted with their rows, while writers keep writing, and are then drained.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{BULK, run_worker};
use crate::support::{
    adopted::{EXISTING_TABLES, migrate_ok, plain_put, world_with},
    *,
};

/// The minimal tables of a paste service.
const LEAST_TABLES: &str = "
    CREATE TABLE content (content_hash bytea PRIMARY KEY, s3_key text, ref_count bigint);
    CREATE TABLE pastes (short_code varchar(32) PRIMARY KEY, content_hash bytea,
                         expires_at timestamptz, created_at timestamptz)";

/// Writes like a paste service (inserts, counts, extends) until `stop` is set. Returns the number
/// of puts.
async fn write_until(stop: Arc<AtomicBool>, url: String, writer: usize) -> usize {
    let db = connect(&url).await;
    db.batch_execute("SET statement_timeout = '10s'").await.expect("set");
    let mut puts = 0;
    while !stop.load(Ordering::Relaxed) {
        let put = format!(
            "BEGIN;
             INSERT INTO content (content_hash, s3_key, ref_count)
             VALUES (sha256('w{writer}-{content}'), 'objects/w{writer}-{content}', 1)
             ON CONFLICT (content_hash) DO UPDATE SET ref_count = content.ref_count + 1;
             INSERT INTO pastes (short_code, content_hash, expires_at)
             VALUES ('w{writer}-{puts}', sha256('w{writer}-{content}'), now() - interval '1 minute');
             COMMIT;
             UPDATE pastes SET expires_at = expires_at + interval '1 second'
             WHERE short_code IN ('live', 'bulk-{puts}')",
            content = puts % 50,
        );
        db.batch_execute(&put).await.unwrap_or_else(|error| panic!("writer failed: {error:?}"));
        puts += 1;
    }
    puts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filled_table_is_adopted_while_it_is_written_and_then_drained() {
    let world = world_with(EXISTING_TABLES).await;
    world.run_sql(BULK).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    plain_put(&world, "stuck", "now() - interval '4 hours'").await;
    plain_put(&world, "live", "now() + interval '1 hour'").await;
    plain_put(&world, "never", "NULL").await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() - interval '3 hours'
             WHERE short_code = 'stuck'",
        )
        .await;

    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        writers.spawn(write_until(Arc::clone(&stop), world.database_url.clone(), writer));
    }
    // A backup reads the table. The migration must wait for it without blocking the writers.
    let backup = connect(&world.database_url).await;
    let read = "BEGIN; SELECT count(*) FROM pastes";
    backup.batch_execute(read).await.expect("read");
    let mut migrating = world.program("cleanupctl").args(&["migrate"]).start();
    migrating.until_it_logs("waiting for a lock").await;
    backup.batch_execute("COMMIT").await.expect("commit");
    let migrated = migrating.end().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    stop.store(true, Ordering::Relaxed);
    let puts: usize = writers.join_all().await.iter().sum();

    let adopted = "SELECT count(*) FROM pastes WHERE deletion_status IS NOT NULL AND attempts = 0";
    assert_eq!(world.count(adopted).await, 20_004 + puts as i64, "every row has a status");
    let unproven = "SELECT count(*) FROM pg_constraint WHERE NOT convalidated";
    assert_eq!(world.count(unproven).await, 0);
    let ran = run_worker(&world).await;
    assert_eq!(ran["rows_deleted"], 20_002 + puts);
    world.assert_drained().await;
    for code in ["live", "never"] {
        assert_eq!(world.read(code).await.as_deref(), Some(code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_only_the_essential_columns_is_adopted_and_drained() {
    let world = world_with(LEAST_TABLES).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    plain_put(&world, "live", "now() + interval '1 hour'").await;
    let migrated = migrate_ok(&world, &[]).await;
    assert!(migrated.stderr().contains("adopting the existing table pastes"));
    assert_eq!(run_worker(&world).await["rows_deleted"], 1);
    world.assert_drained().await;
    assert_eq!(world.read("live").await.as_deref(), Some("live"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_another_system_left_in_progress_get_an_age() {
    let world = world_with(EXISTING_TABLES).await;
    plain_put(&world, "ageless", "now() - interval '1 hour'").await;
    world.run_sql("UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS'").await;
    migrate_ok(&world, &[]).await;
    let aged = "SELECT count(*) FROM pastes WHERE deletion_initiated_at IS NOT NULL";
    assert_eq!(world.count(aged).await, 1);
}
