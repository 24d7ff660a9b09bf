//! Forgotten transactions: rows that they lock wait for them without losing an attempt, and no other
//! row does.

use tokio_postgres::Transaction;

use super::*;
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

const WAITING: &str = "SELECT count(*) FROM pastes
    WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NULL AND attempts = 0
      AND content_hash IS NOT NULL AND retry_at > deletion_initiated_at";
const OPEN_CLAIMS: &str =
    "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";

async fn lock(transaction: &Transaction<'_>, sql: &str) {
    transaction.batch_execute(sql).await.expect("lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_content_row_delays_only_its_own_pastes() {
    let world = World::new().await;
    world.put_many(300, 100).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM content WHERE content_hash = sha256('b7') FOR UPDATE").await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 297);
    assert_eq!((world.count(WAITING).await, world.count(OPEN_CLAIMS).await), (3, 0));
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 0);
    holding.rollback().await.expect("let go");
    world.end_deferral().await;
    let ended = run(&world).await;
    assert_deleted(&ended, 3);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_is_drained_while_pastes_wait_for_their_locked_content_row() {
    let world = World::new().await;
    world.put_many(300, 100).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM content WHERE content_hash = sha256('b7') FOR UPDATE").await;
    assert_eq!(run(&world).await.code(), 1);
    for _ in ["not due for a reset yet", "deferred again by the sweep at the start"] {
        let ended = run(&world).await;
        assert_stranded(&ended, 3, "p00000007");
        let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
        assert_eq!(once.code(), 1, "{}", once.stdout());
        let status = world.program("cleanupctl").args(&["status"]).output().await.stdout();
        for words in ["3 expired pastes are in progress without", "cleanupctl explain p00000007"] {
            assert!(status.contains(words), "{words}: {status}");
        }
        world.end_deferral().await;
    }
    holding.rollback().await.expect("let go");
    assert_deleted(&run(&world).await, 3);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_released_while_another_transaction_locks_a_content_row() {
    let world = World::new().await;
    world.put_many(20, 10).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 20).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM content WHERE content_hash = sha256('b7') FOR UPDATE").await;
    let reset = worker.release(claim.fence, "a test").await.expect("release");
    assert_eq!((reset.rows, reset.left), (18, 2));
    assert_eq!((world.count(WAITING).await, world.count(OPEN_CLAIMS).await), (2, 0));
    holding.rollback().await.expect("let go");
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 2);
    assert_eq!(drain(&worker).await.rows_deleted, 20);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deferred_rows_do_not_keep_stranded_rows_from_being_reset() {
    let world = World::new().await;
    world.put("waits", "held", Ago(60.0)).await;
    world.put("stranded", "free", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 2).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM content WHERE content_hash = sha256('held') FOR UPDATE").await;
    worker.release(claim.fence, "a test").await.expect("release");
    let mark = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                  deletion_initiated_at = now() - interval '3 hours'
                WHERE short_code = 'stranded'";
    world.run_sql(mark).await;
    world.end_deferral().await;
    assert_eq!((world.sweep().await.stranded, world.count(WAITING).await), (1, 1));
    holding.rollback().await.expect("let go");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncommitted_insert_that_references_a_paste_delays_only_that_paste() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    world
        .run_sql("CREATE TABLE comments (short_code text REFERENCES pastes ON DELETE CASCADE)")
        .await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "INSERT INTO comments VALUES ('p00000007')").await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((&ended.json()["rows_deleted"], world.count(LEFT).await), (&299.into(), 1));
    let deferred = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                    AND attempts = 0 AND content_hash IS NULL AND last_error LIKE '%locked%'";
    assert_eq!(world.count(deferred).await, 1);
    holding.commit().await.expect("let go");
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_although_a_locked_paste_comes_due_again_and_again() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    world
        .run_sql("CREATE TABLE comments (short_code text REFERENCES pastes ON DELETE CASCADE)")
        .await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "INSERT INTO comments VALUES ('p00000007')").await;
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--run-time", "10m"])
        .env("CLEANUP_WORKER_BACKOFF_CAP", "1s")
        .output()
        .await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!(
        (&ended.json()["rows_deleted"], &ended.json()["rows_failed"]),
        (&299.into(), &1.into())
    );
    holding.rollback().await.expect("let go");
    assert_deleted(&run(&world).await, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_row_locked_at_finish_stays_and_is_not_decremented_again() {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), "shared", Ago(60.0)).await;
    }
    world.put("own", "own", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .start();
    s3.called(1).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM pastes WHERE short_code = 'p7' FOR UPDATE").await;
    s3.set_mode(Mode::Normal);
    s3.let_go();
    let ended = worker.end().await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((&ended.json()["rows_deleted"], world.count(OPEN_CLAIMS).await), (&20.into(), 0));
    holding.rollback().await.expect("let go");
    let ended = run(&world).await;
    assert_deleted(&ended, 1);
    assert_eq!(
        world.count("SELECT ref_count::bigint FROM content").await,
        1,
        "the reference of the live paste"
    );
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_locked_together_with_its_content_does_not_delay_its_batch() {
    let world = World::new().await;
    world.put_many(100, 100).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 100).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM content WHERE content_hash = sha256('b7') FOR UPDATE").await;
    lock(&holding, "SELECT FROM pastes WHERE short_code = 'p00000007' FOR UPDATE").await;
    // Nothing is decremented, so that the locked row keeps its reference when the claim ends.
    let error = worker.decrement(&claim).await.expect_err("cannot be decremented whole");
    assert!(error.to_string().contains("lock timeout"), "{error}");
    let reset = worker.release(claim.fence, "a test").await.expect("release");
    assert_eq!((reset.rows, reset.left), (99, 1));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    holding.rollback().await.expect("let go");
    assert_eq!(world.sweep().await.stranded, 1);
    assert_eq!(drain(&worker).await.rows_deleted, 100);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_does_not_delay_a_run_beyond_its_deadline() {
    let world = World::new().await;
    world
        .run_sql(
            "INSERT INTO cleanup_unclaimable (short_code, error, retry_at)
             VALUES ('erased', 'refused', now() + interval '1 day')",
        )
        .await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    lock(&holding, "SELECT FROM cleanup_unclaimable FOR UPDATE").await;
    // The sweep at the start would wait for the lock, and report it.
    let ended = run_with(&world, &["--run-time", "0s"]).await;
    assert_eq!(ended.json()["stopped_because"], "deadline");
    assert!(!ended.stderr().contains("the sweep at the start"), "{}", ended.stderr());
    holding.rollback().await.expect("let go");
}
