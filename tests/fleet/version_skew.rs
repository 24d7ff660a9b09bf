//! Programs of the last version on a database of the next one: a program that runs during the
//! migration finishes its open batch, changes nothing more, and reports why. (A program that starts
//! later is refused at once: see `start_errors/schema.rs`.)

use crate::support::{mid_run::run_with_change, *};

const MIGRATE: &str = "INSERT INTO cleanup_migrations (version, name) VALUES (999, 'future')";
const DOWNGRADE: &str = "DELETE FROM cleanup_migrations WHERE version > 1";

/// Asserts that a worker finishes its open batch after this change and claims no more.
async fn assert_claims_no_more(change: &str, words: &[&str]) {
    let (world, ended) = run_with_change(change).await;
    ended.assert_refused(1, words);
    let summary = ended.json();
    assert_eq!(
        (&summary["rows_deleted"], &summary["stopped_because"]),
        (&5.into(), &"failed".into())
    );
    let claims = "SELECT count(*) FROM deletion_claims";
    assert_eq!(world.count(claims).await, 1, "it finished its batch and claimed no more");
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finishes_its_batch_and_claims_no_more_once_its_database_is_migrated() {
    assert_claims_no_more(MIGRATE, &["schema version 999", "upgrade"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finishes_its_batch_and_claims_no_more_once_its_database_is_downgraded() {
    assert_claims_no_more(DOWNGRADE, &["schema version 1", "run `cleanupctl migrate`"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finishes_its_batch_and_claims_no_more_once_its_database_has_another_bucket() {
    let moved = "UPDATE cleanup_fleet SET bucket = 'moved'";
    assert_claims_no_more(moved, &["belongs to bucket \"moved\"", "correct S3_BUCKET"]).await;
    let under = "UPDATE cleanup_fleet SET prefix = 'under/'";
    assert_claims_no_more(under, &["with prefix \"under/\"", "correct S3_BUCKET"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_exits_and_resets_nothing_more_once_its_database_is_migrated() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let mut watchdog = world
        .program("cleanup-watchdog")
        .env("CLEANUP_WATCHDOG_TICK", "200ms")
        .env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0")
        .start();
    watchdog.until_it_logs("health and metrics on").await;
    world.run_sql(MIGRATE).await;
    let ended = watchdog.end().await;
    ended.assert_refused(1, &["schema version 999", "upgrade"]);
    world
        .run_sql(
            "INSERT INTO deletion_claims (worker, rows_claimed, heartbeat_at)
         VALUES (gen_random_uuid(), 10, now() - interval '3 hours');
         UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', claim_id = 1,
                           deletion_initiated_at = now() - interval '3 hours'",
        )
        .await;
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    once.assert_refused(1, &["schema version 999"]);
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE attempts > 0").await, 0);
}
