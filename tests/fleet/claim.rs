//! Claims: only due rows, in order, never the same row twice, never without a lease.

use std::{collections::HashSet, sync::Arc};

use crate::support::*;
use paste_cleanup::worker::batch::claim::Wanted;

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_only_due_pastes() {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    world.put("future", "b", In(60.0)).await;
    world.put("never", "c", Never).await;
    world.put("tombstone", "d", Ago(60.0)).await;
    world.put("in-progress", "e", Ago(60.0)).await;
    world.put("dead-letter", "f", Ago(60.0)).await;
    world.put("backing-off", "g", Ago(60.0)).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETED' WHERE short_code = 'tombstone';
             UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() WHERE short_code = 'in-progress';
             UPDATE pastes SET retry_at = 'infinity' WHERE short_code = 'dead-letter';
             UPDATE pastes SET retry_at = now() + interval '1 hour', attempts = 1
             WHERE short_code = 'backing-off'",
        )
        .await;
    let worker = world.worker().await;
    assert_eq!(codes(&claim_some(&worker, 100).await), ["due"]);
    assert!(claim(&worker, 100).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_the_longest_overdue_first_and_at_most_the_batch_size() {
    let world = World::new().await;
    for (code, ago) in [("third", 10.0), ("first", 1000.0), ("fourth", 1.0), ("second", 100.0)] {
        world.put(code, code, Ago(ago)).await;
    }
    let worker = world.worker().await;
    assert_eq!(codes(&claim_some(&worker, 2).await), ["first", "second"]);
    assert_eq!(codes(&claim_some(&worker, 2).await), ["fourth", "third"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_row_always_has_a_claim() {
    let world = World::new().await;
    world.put_many(50, 50).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 20).await;
    let covered = world
        .count_with(
            "SELECT count(*) FROM pastes p JOIN deletion_claims c ON c.id = p.claim_id
             WHERE p.deletion_status = 'DELETION_IN_PROGRESS' AND p.deletion_initiated_at = c.claimed_at
               AND c.id = $1 AND c.worker = $2 AND c.rows_claimed = 20
               AND c.finished_at IS NULL AND c.reset_at IS NULL",
            &[&claim.fence.claim, &worker.id],
        )
        .await;
    assert_eq!(covered, 20);
    let in_progress = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";
    assert_eq!(world.count(in_progress).await, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_claim_leaves_no_claim_row_behind() {
    let world = World::new().await;
    world.put("live", "a", In(60.0)).await;
    let worker = world.worker().await;
    assert!(claim(&worker, 10).await.is_none());
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

/// Twenty workers claim at once until nothing is left; every row must be claimed exactly once.
async fn twenty_workers_claim(redis: Option<String>) {
    let world = World::new().await;
    world.put_many(1000, 1000).await;
    let mut claiming = tokio::task::JoinSet::new();
    let start = Arc::new(tokio::sync::Barrier::new(20));
    for _ in 0..20 {
        let worker = world
            .worker_with(|settings| {
                settings.postgres.pool_size = 2;
                if let Some(url) = &redis {
                    settings.redis.url = Some(url.clone().into());
                }
            })
            .await;
        let start = Arc::clone(&start);
        claiming.spawn(async move {
            start.wait().await;
            let mut mine = Vec::new();
            while let Some(claim) = claim(&worker, 10).await {
                mine.extend(codes(&claim));
            }
            mine
        });
    }
    let (mut all, mut distinct) = (0, HashSet::new());
    while let Some(mine) = claiming.join_next().await {
        let mine = mine.expect("claimer");
        all += mine.len();
        distinct.extend(mine);
    }
    // SKIP LOCKED may leave a row to no worker for a moment; one more claim takes it.
    let last = world.worker().await;
    while let Some(claim) = claim(&last, 1000).await {
        all += claim.pastes.len();
        distinct.extend(codes(&claim));
    }
    assert_eq!((all, distinct.len()), (1000, 1000), "claimed and distinct");
    let sum = "SELECT sum(rows_claimed)::bigint FROM deletion_claims";
    assert_eq!(world.count(sum).await, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_workers_with_the_lock_never_claim_the_same_row() {
    twenty_workers_claim(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_workers_without_the_lock_never_claim_the_same_row() {
    // Nothing listens on port 1: the lock is unavailable to all of them.
    twenty_workers_claim(Some("redis://127.0.0.1:1".into())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_was_extended_while_backing_off_is_not_claimed() {
    let world = World::new().await;
    world.put("extended", "a", Ago(60.0)).await;
    // Its retry time has come, but the owner extended it by a plain UPDATE.
    world
        .run_sql(
            "UPDATE pastes SET attempts = 1, retry_at = now() - interval '1 second';
             UPDATE pastes SET expires_at = now() + interval '1 day'",
        )
        .await;
    let worker = world.worker().await;
    assert!(claim(&worker, 10).await.is_none());
    let summary = drain(&worker).await;
    assert_eq!(summary.rows_deleted, 0);
    assert_eq!(world.read("extended").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_rows_are_claimed_in_batches_a_tenth_the_size_for_each_attempt() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    world.run_sql("UPDATE pastes SET attempts = 1 WHERE short_code <= 'p00000200'").await;
    world.run_sql("UPDATE pastes SET attempts = 2 WHERE short_code <= 'p00000100'").await;
    let worker = world.worker().await;
    let sizes = [claim_some(&worker, 100).await, claim_some(&worker, 100).await];
    assert_eq!(sizes.map(|claim| claim.pastes.len()), [1, 1], "attempts 2: a hundredth");
    world.run_sql("DELETE FROM pastes WHERE attempts = 2").await;
    let claim = claim_some(&worker, 100).await;
    assert_eq!(claim.pastes.len(), 10, "attempts 1: a tenth");
    assert!(claim.pastes.iter().all(|paste| paste.attempts == 1), "one class per batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_does_not_claim_rows_that_must_run_alone() {
    let world = World::new().await;
    world.put("culprit", "a", Ago(100.0)).await;
    world.put("innocent", "b", Ago(50.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 3 WHERE short_code = 'culprit'").await;
    let worker = world.worker().await;
    let busy = worker
        .claim(Wanted { size: 100, mark: None, busy: true, until: None })
        .await
        .expect("claim");
    assert!(busy.is_none(), "the first due row must run alone");
    assert_eq!(codes(&claim_some(&worker, 100).await), ["culprit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_takes_nothing_has_unlocked_every_row_when_it_returns() {
    let world = World::new().await;
    world.put("culprit", "a", Ago(100.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 3 WHERE short_code = 'culprit'").await;
    let worker = world.worker().await;
    let free = "SELECT count(*) FROM (SELECT FROM pastes FOR UPDATE SKIP LOCKED) AS free";
    for _ in 0..200 {
        let wanted = Wanted { size: 100, mark: None, busy: true, until: None };
        assert!(worker.claim(wanted).await.expect("claim").is_none(), "it must run alone");
        assert_eq!(world.count(free).await, 1, "the next claim would skip it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_low_water_mark_skips_earlier_rows_and_a_claim_without_it_finds_them() {
    let world = World::new().await;
    world.put("old", "a", Ago(1000.0)).await;
    let worker = world.worker().await;
    let mark = claim_some(&worker, 10).await.last_due;
    world.put("older", "b", Ago(2000.0)).await;
    world.put("newer", "c", Ago(10.0)).await;
    let marked = Wanted { size: 10, mark: Some(mark), busy: false, until: None };
    assert_eq!(codes(&worker.claim(marked).await.expect("claim").expect("newer")), ["newer"]);
    assert!(worker.claim(marked).await.expect("claim").is_none());
    let summary = drain(&world.worker().await).await;
    assert_eq!(summary.rows_deleted, 1, "the run's claim without a mark found the older one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_expired_at_minus_infinity_is_claimed_like_any_other() {
    let world = World::new().await;
    world.put("ancient", "a", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET expires_at = '-infinity'").await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_with_a_row_error_share_a_batch_with_rows_that_never_failed() {
    let world = World::new().await;
    world.put_many(100, 100).await;
    world
        .run_sql(
            "UPDATE pastes SET attempts = 4, last_error = 'AccessDenied'
             WHERE short_code <= 'p00000050'",
        )
        .await;
    let worker = world.worker().await;
    let claim = worker
        .claim(Wanted { size: 100, mark: None, busy: true, until: None })
        .await
        .expect("claim");
    assert_eq!(claim.expect("all of them").pastes.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_a_row_error_runs_alone_before_a_dead_worker_makes_it_a_dead_letter() {
    let world = World::new().await;
    world.put("suspect", "a", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 4, last_error = 'AccessDenied'").await;
    let worker = world.worker().await;
    // Other claims may have been open beside this one, so it is unknown which one killed the worker.
    claim_some(&worker, 1000).await;
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.dead_letters, 0);
    world.end_backoff().await;
    let busy = Wanted { size: 1000, mark: None, busy: true, until: None };
    assert!(worker.claim(busy).await.expect("claim").is_none(), "it must run alone");
    claim_some(&worker, 1000).await;
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.dead_letters, 1);
}
