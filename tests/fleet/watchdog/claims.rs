//! Claims whose lease has expired.

use super::IN_PROGRESS;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_reset_two_hours_after_its_last_heartbeat_and_not_earlier() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 20).await;
    world.expire_leases(7100.0).await;
    assert_eq!(world.sweep().await.reset.claims, 0);
    assert_eq!(world.count(IN_PROGRESS).await, 20);
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows), (1, 20));
    let expected = format!(
        "SELECT count(*) FROM pastes
         WHERE deletion_status = 'NOT_EXPIRED' AND deletion_initiated_at IS NULL
           AND claim_id IS NULL AND attempts = 1 AND content_hash IS NOT NULL
           AND retry_at BETWEEN now() - interval '1 minute' AND now() + interval '1 second'
           AND last_error = 'worker lease expired (claim {}, worker {})'",
        claim.fence.claim, worker.id
    );
    assert_eq!(world.count(&expected).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_watchdogs_at_once_reset_every_claim_once() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    let worker = world.worker().await;
    while claim(&worker, 10).await.is_some() {}
    world.expire_leases(7201.0).await;
    let (one, two) = tokio::join!(world.sweep(), world.sweep());
    // The second sweep may have been skipped because the first was running; nothing is done twice.
    assert_eq!(one.reset.claims + two.reset.claims, 30);
    let once = "SELECT count(*) FROM pastes WHERE attempts = 1 AND deletion_status = 'NOT_EXPIRED'";
    assert_eq!(world.count(once).await, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_resets_everything_that_is_stuck_page_by_page() {
    let world = World::new().await;
    world.put_many(6000, 6000).await;
    let worker = world.worker().await;
    for _ in 0..23 {
        claim_some(&worker, 20).await;
    }
    world.expire_leases(7201.0).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                    deletion_initiated_at = now() - interval '3 hours'
             WHERE deletion_status = 'NOT_EXPIRED'",
        )
        .await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows), (23, 460));
    assert_eq!(swept.stranded, 5540);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_sweeps_expired_claims_when_it_starts() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.claims_reset_at_start, summary.rows_deleted), (1, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_stays_in_progress_and_no_other_row_of_its_claim_does() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    let blocked = claim_some(&worker, 10).await;
    claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    world
        .run_sql(&format!(
            "UPDATE deletion_claims SET heartbeat_at = now() - interval '3 hours' WHERE id = {}",
            blocked.fence.claim
        ))
        .await;
    // A forgotten transaction locks a row of the older claim.
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    let lock = "SELECT FROM pastes WHERE short_code = $1 FOR UPDATE";
    holding.query(lock, &[&blocked.pastes[0].short_code]).await.expect("lock");
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (2, 19, 1));
    assert_eq!(world.count(IN_PROGRESS).await, 1);
    holding.rollback().await.expect("rollback");
    assert_eq!(world.sweep().await.stranded, 1);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_claim_is_reported_and_reset_once_it_can_be() {
    let world = World::new().await;
    world.put("only", "only", Ago(60.0)).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    world.expire_leases(7201.0).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    holding.query("SELECT FROM pastes FOR UPDATE", &[]).await.expect("lock");
    let once = world.program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(once.code(), 1, "cron must see the failure: {}", once.stdout());
    assert!(once.stdout().contains("could not reset 1 claim: "), "{}", once.stdout());
    holding.rollback().await.expect("rollback");
    assert_eq!(world.sweep().await.reset.claims, 1);
    assert_eq!(world.count(IN_PROGRESS).await, 0);
}
