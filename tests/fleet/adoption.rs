//! Adoption: `cleanupctl migrate` on existing databases of a paste service that keeps writing.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::support::{
    adopted::{EXISTING_TABLES, migrate, migrate_ok, plain_put, world_with},
    *,
};
use tokio_postgres::Client;

/// The minimal tables of a paste service.
const LEAST_TABLES: &str = "
    CREATE TABLE content (content_hash bytea PRIMARY KEY, s3_key text, ref_count bigint);
    CREATE TABLE pastes (short_code varchar(32) PRIMARY KEY, content_hash bytea,
                         expires_at timestamptz, created_at timestamptz)";

/// Drains the world with a worker process.
async fn run_worker(world: &World) -> serde_json::Value {
    let ended = world.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()
}

/// Describes columns and constraints, to see whether anything was changed.
async fn schema(world: &World) -> Option<String> {
    world
        .text(
            "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
                 SELECT format('%s %s %s %s', attrelid::regclass, attname, atttypid::regtype,
                               attnotnull) AS line
                 FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
                 WHERE c.relnamespace = 'public'::regnamespace AND attnum > 0
                 UNION ALL
                 SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid))
                 FROM pg_constraint WHERE connamespace = 'public'::regnamespace) AS lines",
        )
        .await
}

/// Writes like a paste service (inserts, counts, extends) until `stop` is set. Returns the number of
/// puts.
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

/// Twenty thousand expired pastes, a third of them without a status.
const BULK: &str = "
    INSERT INTO pastes (short_code, content_hash, expires_at, deletion_status)
    SELECT 'bulk-' || n, sha256(('bulk' || n % 300)::bytea), now() - interval '1 day',
           CASE WHEN n % 3 > 0 THEN 'NOT_EXPIRED' END
    FROM generate_series(1, 20000) n;
    INSERT INTO content (content_hash, s3_key, ref_count)
    SELECT content_hash, 'objects/' || encode(content_hash, 'hex'), count(*)
    FROM pastes WHERE short_code LIKE 'bulk-%' GROUP BY content_hash";

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

#[tokio::test(flavor = "multi_thread")]
async fn blockers_are_named_and_removed_only_on_request() {
    let world = world_with(EXISTING_TABLES).await;
    plain_put(&world, "expired", "now() - interval '1 hour'").await;
    world
        .run_sql(
            "ALTER TABLE pastes ALTER content_hash SET NOT NULL,
             ADD CONSTRAINT content_of_paste FOREIGN KEY (content_hash) REFERENCES content",
        )
        .await;
    let before = schema(&world).await;
    let refused = migrate(&world, &[]).await;
    assert_eq!(refused.code(), 1);
    for words in ["content_of_paste", "NOT NULL on pastes.content_hash", "--remove-blockers"] {
        assert!(refused.stderr().contains(words), "{words} is not in: {}", refused.stderr());
    }
    assert_eq!(schema(&world).await, before, "nothing was changed");

    migrate_ok(&world, &["--remove-blockers"]).await;
    assert_eq!(run_worker(&world).await["rows_deleted"], 1);
    world.assert_drained().await;
}

/// Asserts that the migration refuses these tables with these words, and changes nothing.
async fn assert_refused(change: &str, words: &[&str]) {
    let world = world_with(EXISTING_TABLES).await;
    world.run_sql(change).await;
    let before = schema(&world).await;
    for flags in [&[][..], &["--remove-blockers"]] {
        let refused = migrate(&world, flags).await;
        assert_eq!(refused.code(), 1, "{}", refused.stderr());
        for word in words {
            assert!(refused.stderr().contains(word), "{word} is not in: {}", refused.stderr());
        }
        assert_eq!(schema(&world).await, before, "nothing was changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_of_the_wrong_type_is_refused_by_name() {
    let to_text = "ALTER TABLE pastes ALTER content_hash TYPE text";
    assert_refused(to_text, &["pastes.content_hash is text", "bytea is needed"]).await;
    let to_local = "ALTER TABLE pastes ALTER expires_at TYPE timestamp";
    assert_refused(to_local, &["pastes.expires_at is timestamp without time zone"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_essential_column_is_refused_by_name() {
    let drop = "ALTER TABLE content DROP s3_key";
    assert_refused(drop, &["content.s3_key is missing"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_counts_are_refused_with_their_number() {
    let negative = "INSERT INTO content VALUES ('a', 'a', 1, -1), ('b', 'b', 1, -2)";
    assert_refused(negative, &["content.ref_count: 2 rows are NULL or negative"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_rows_that_share_one_object_are_refused() {
    let shared = "INSERT INTO content VALUES ('a', 'same', 1, 1), ('b', 'same', 1, 1)";
    assert_refused(shared, &["content.s3_key: 2 rows share their key"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_status_is_refused() {
    let unknown = "ALTER TABLE pastes DROP CONSTRAINT pastes_deletion_status_check;
                   INSERT INTO pastes VALUES ('p', 'a', now(), now(), 'ARCHIVED')";
    assert_refused(unknown, &["pastes.deletion_status: 1 rows have an unknown status"]).await;
}

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

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_is_refused_until_the_database_is_bound_to_it() {
    let world = World::new().await;
    world.put("first", "a", Ago(60.0)).await;
    run_worker(&world).await;
    let moved = format!("{}-moved", world.bucket);
    world.s3.create_bucket().bucket(&moved).send().await.expect("create bucket");
    world.put("second", "b", Ago(60.0)).await;
    let run = || world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", &moved);
    run().output().await.assert_refused(1, &[&world.bucket, &moved, "migrate --rebind-bucket"]);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 1, "nothing claimed");

    let rebind = ["migrate", "--rebind-bucket"];
    let rebound = world.program("cleanupctl").args(&rebind).env("S3_BUCKET", &moved).output().await;
    assert_eq!(rebound.code(), 0, "{}", rebound.stderr());
    assert_eq!(run().output().await.code(), 0);
    let old = world.program("cleanup-worker").args(&["run"]).output().await;
    old.assert_refused(1, &[&world.bucket, &moved]);
}
