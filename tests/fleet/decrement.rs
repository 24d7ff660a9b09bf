//! Decrements: every count is correct, and content is kept until its last reference is gone.

use std::sync::Arc;

use crate::support::*;
use futures_util::future::join_all;

#[tokio::test(flavor = "multi_thread")]
async fn shared_content_survives_until_its_last_reference() {
    let world = World::new().await;
    world.put("first", "shared", Ago(60.0)).await;
    world.put("second", "shared", In(60.0)).await;
    let key = world.put("third", "shared", Never).await;
    let worker = world.worker().await;
    drain(&worker).await;
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2);
    assert_eq!(world.read("second").await.as_deref(), Some("shared"));
    world.run_sql("SELECT paste_expire_now('second'), paste_expire_now('third')").await;
    drain(&worker).await;
    assert_eq!(world.object(&key).await, None);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_shared_by_concurrent_decrements_is_deleted_exactly_once() {
    let world = World::new().await;
    for n in 0..60 {
        world.put(&format!("p{n}"), &format!("body {}", n % 7), Ago(100.0 - f64::from(n))).await;
    }
    world.put("live", "body 3", Never).await;
    let mut batches = Vec::new();
    for _ in 0..6 {
        let worker = world.worker().await;
        let claim = claim_some(&worker, 10).await;
        batches.push((worker, claim));
    }
    let decremented = join_all(batches.iter().map(|(worker, claim)| worker.decrement(claim))).await;
    let decremented: Vec<_> = decremented.into_iter().map(|r| r.expect("decrement")).collect();
    assert_eq!(
        decremented.iter().map(|r| r.unreferenced.len()).sum::<usize>(),
        6,
        "each content once"
    );
    assert_eq!(decremented.iter().map(|r| r.drift).sum::<usize>(), 0, "no false drift");
    for ((worker, claim), decremented) in batches.iter().zip(&decremented) {
        let objects = worker.delete_objects(claim, decremented).await.expect("delete");
        worker.finish(claim, &objects, &Default::default()).await.expect("finish");
    }
    assert_eq!(world.read("live").await.as_deref(), Some("body 3"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decrements_that_wait_for_the_same_lock_see_no_false_drift() {
    let world = World::new().await;
    world.put("one", "shared", Ago(30.0)).await;
    world.put("two", "shared", Ago(20.0)).await;
    world.put("three", "shared", Ago(10.0)).await;
    let mut batches = Vec::new();
    for _ in 0..3 {
        let worker = world.worker().await;
        let claim = claim_some(&worker, 1).await;
        batches.push((worker, claim));
    }
    // All three decrements wait for this lock, with snapshots from before it is released.
    let blocker = connect(&world.database_url).await;
    blocker.batch_execute("BEGIN; SELECT FROM content FOR UPDATE").await.expect("lock");
    let decrements = tokio::spawn(async move {
        join_all(batches.iter().map(|(worker, claim)| worker.decrement(claim))).await
    });
    world.when_it_waits("cleanup-worker%", 3, &blocker, "COMMIT").await;
    let decremented = decrements.await.expect("join");
    let decremented: Vec<_> = decremented.into_iter().map(|r| r.expect("decrement")).collect();
    assert_eq!(decremented.iter().map(|r| r.drift).sum::<usize>(), 0, "no false drift");
    assert_eq!(
        decremented.iter().map(|r| r.unreferenced.len()).sum::<usize>(),
        1,
        "unreferenced by the last decrement"
    );
    assert_eq!(world.count("SELECT count(*) FROM content").await, 0, "nothing leaked");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_uploaded_again_while_its_old_object_is_deleted_survives() {
    let world = World::new().await;
    let old_key = world.put("old", "again", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    // Between decrement and delete, a writer stores the same content.
    let new_key = world.put("new", "again", Never).await;
    assert_ne!(old_key, new_key);
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    // A delete that arrives late, or twice, deletes nothing else.
    worker.delete_objects(&claim, &decremented).await.expect("late delete");
    assert_eq!(world.read("new").await.as_deref(), Some("again"));
    assert_eq!(world.object(&old_key).await, None);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decremented_claim_that_is_reset_does_not_decrement_twice() {
    let world = World::new().await;
    world.put("expired", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    world.put("live too", "shared", Never).await;
    let dead = world.worker().await;
    let claim = claim_some(&dead, 10).await;
    dead.decrement(&claim).await.expect("decrement");
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2);
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.claims, 1);
    world.end_backoff().await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2);
    assert_eq!(world.read("live").await.as_deref(), Some("shared"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decremented_claim_that_is_reset_leaves_its_pending_object_deletes_to_its_rows() {
    let world = World::new().await;
    let key = world.put("owner", "only here", Ago(60.0)).await;
    world.put("other", "something else", Ago(50.0)).await;
    let dead = world.worker().await;
    let claim = claim_some(&dead, 10).await;
    dead.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    world.sweep().await;
    let pending =
        "SELECT pending_s3_key FROM pastes WHERE short_code = 'owner' AND content_hash IS NULL";
    assert_eq!(world.text(pending).await, Some(key.clone()));
    world.assert_consistent().await;
    world.end_backoff().await;
    drain(&world.worker().await).await;
    assert_eq!(world.object(&key).await, None);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_object_delete_moves_to_another_row_when_its_owner_is_deleted_by_hand() {
    let world = World::new().await;
    world.put("owner", "a", Ago(60.0)).await;
    world.put("spare", "shared", Ago(50.0)).await;
    world.put("live", "shared", Never).await;
    let dead = world.worker().await;
    let claim = claim_some(&dead, 10).await;
    dead.decrement(&claim).await.expect("decrement");
    world.run_sql("DELETE FROM pastes WHERE short_code = 'owner'").await;
    world.expire_leases(7201.0).await;
    world.sweep().await;
    world.assert_consistent().await;
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_is_too_low_is_repaired_and_no_live_paste_loses_its_body() {
    let world = World::new().await;
    for (code, expires) in [("expired", Ago(60.0)), ("live", In(60.0)), ("eternal", Never)] {
        world.put(code, "drifted", expires).await;
    }
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.rows_deleted, summary.drift_repaired), (1, 1));
    assert_eq!(world.read("live").await.as_deref(), Some("drifted"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_of_zero_under_expired_pastes_still_deletes_the_object() {
    let world = World::new().await;
    world.put("one", "drifted", Ago(60.0)).await;
    world.put("two", "drifted", Ago(60.0)).await;
    world.run_sql("UPDATE content SET ref_count = 0").await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.objects_deleted, summary.drift_repaired), (1, 1));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_content_row_is_drift_and_does_not_stop_the_paste() {
    let world = World::new().await;
    world.put("expired", "lost", Ago(60.0)).await;
    world.put("other", "kept", Ago(60.0)).await;
    let key = world.text("DELETE FROM content WHERE size_bytes = 4 AND content_hash = sha256('lost') RETURNING s3_key").await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.rows_deleted, summary.drift_repaired), (2, 1));
    assert_eq!(world.keys().await, Vec::from_iter(key), "no row knows that key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_that_waits_for_a_writer_counts_what_the_writer_added() {
    let world = World::new().await;
    world.put("expired", "busy", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    // A writer adds a reference and has not committed when the decrement starts.
    let writer = connect(&world.database_url).await;
    let put = "BEGIN; SELECT outcome FROM paste_put('new', sha256('busy'), NULL, 4, NULL)";
    writer.batch_execute(put).await.expect("put");
    let decrementing = {
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        tokio::spawn(async move { worker.decrement(&claim).await })
    };
    world.when_a_worker_waits(&writer, "COMMIT").await;
    let decremented = decrementing.await.expect("join").expect("decrement");
    assert_eq!((decremented.unreferenced.len(), decremented.drift), (0, 0));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!(world.read("new").await.as_deref(), Some("busy"));
    world.assert_drained().await;
}
