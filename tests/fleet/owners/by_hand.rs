//! Rows that an operator resets by hand while they are claimed: no count becomes wrong, whichever
//! comes first.

use std::sync::Arc;

use super::*;
use crate::support::*;

const RESET: &str = "UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL,
                                          deletion_initiated_at = NULL
                        WHERE short_code = 'one'";
const REF_COUNT: &str = "SELECT ref_count::bigint FROM content";
const KEEPS_REFERENCE: &str = "SELECT count(*) FROM pastes WHERE short_code = 'one'
                     AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NOT NULL";

/// Claims two expired pastes that share their content with a live one.
async fn shared(
    world: &World,
) -> (Arc<paste_cleanup::worker::Worker>, paste_cleanup::claim::Claim) {
    world.put("one", "shared", Ago(61.0)).await;
    world.put("two", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    (worker, claim)
}

/// Drains, and asserts that only the live paste and its reference are left.
async fn assert_ends_well(world: &World, worker: &Arc<paste_cleanup::worker::Worker>) {
    drain(worker).await;
    assert_eq!((world.count(REF_COUNT).await, world.count(LEFT).await), (1, 1));
    assert_eq!(world.read("live").await.as_deref(), Some("shared"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_reset_by_hand_before_its_decrement_keeps_its_reference_and_is_counted() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    world.run_sql(RESET).await;
    carry_out(&worker, &claim).await;
    assert_eq!((world.count(KEEPS_REFERENCE).await, world.count(REF_COUNT).await), (1, 2));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_reset_by_hand_after_its_decrement_does_not_regain_its_reference() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    world.run_sql(RESET).await;
    assert_eq!((world.count(KEEPS_REFERENCE).await, world.count(REF_COUNT).await), (0, 1));
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_waits_for_a_reset_by_hand_that_is_not_committed_yet() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    let by_hand = connect(&world.database_url).await;
    by_hand.batch_execute(&format!("BEGIN; {RESET}")).await.expect("reset");
    let decrementing = {
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        tokio::spawn(async move { carry_out(&worker, &claim).await })
    };
    world.when_a_worker_waits(&by_hand, "COMMIT").await;
    decrementing.await.expect("join");
    assert_eq!((world.count(KEEPS_REFERENCE).await, world.count(REF_COUNT).await), (1, 2));
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_of_an_ended_claim_does_not_regain_its_reference_by_hand() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    worker.decrement(&claim).await.expect("decrement");
    world.run_sql("UPDATE deletion_claims SET reset_at = now()").await;
    world.run_sql(RESET).await;
    assert_eq!((world.count(KEEPS_REFERENCE).await, world.count(REF_COUNT).await), (0, 1));
    world.sweep().await;
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_cannot_be_reset_by_hand_while_its_decrement_is_uncommitted() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    // What the decrement does, uncommitted for longer than the reset by hand waits.
    let mut decrement = connect(&world.database_url).await;
    let decrementing = decrement.transaction().await.expect("begin");
    let locks = "UPDATE deletion_claims SET heartbeat_at = now(); SELECT FROM content FOR UPDATE";
    decrementing.batch_execute(locks).await.expect("lock");
    let refused = world.db.batch_execute(RESET).await.expect_err("refused");
    assert_eq!(refused.code().map(|code| code.code().to_string()).as_deref(), Some("55P03"));
    decrementing.commit().await.expect("commit");
    carry_out(&worker, &claim).await;
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_transaction_that_reset_one_paste_delays_no_other_paste() {
    let world = World::new().await;
    world.put("one", "own", Ago(61.0)).await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 21).await;
    let mut by_hand = connect(&world.database_url).await;
    let resetting = by_hand.transaction().await.expect("begin");
    resetting.batch_execute(RESET).await.expect("reset");
    if let Err(error) = worker.decrement(&claim).await {
        assert!(error.to_string().contains("lock timeout"), "{error}");
        worker.release(claim.fence, "a test").await.expect("release");
    }
    drain(&worker).await;
    assert_eq!(world.count(LEFT).await, 1, "the one that is being reset");
    resetting.commit().await.expect("commit");
    world.end_backoff().await;
    drain(&worker).await;
    world.assert_drained().await;
}

/// Runs `sql` before the decrement of two claimed pastes that share their content with two live
/// ones, and returns the count and the number of references afterwards.
async fn counts_after(sql: &str) -> (i64, i64) {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    world.put("live too", "shared", Never).await;
    world.run_sql(sql).await;
    carry_out(&worker, &claim).await;
    let references = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL";
    (world.count(REF_COUNT).await, world.count(references).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_a_claimed_paste_its_content_counts_the_remaining_references() {
    let tombstone =
        "UPDATE pastes SET deletion_status = 'DELETED', claim_id = NULL, content_hash = NULL
                  WHERE short_code = 'one'";
    let emptied = "UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL,
                          content_hash = NULL WHERE short_code = 'one'";
    let stored_again = "DELETE FROM pastes WHERE short_code = 'one';
         INSERT INTO pastes (short_code, content_hash) VALUES ('one', sha256('shared'))";
    let deleted = "DELETE FROM pastes WHERE short_code = 'one'";
    for sql in [tombstone, emptied, stored_again, deleted] {
        let (count, references) = counts_after(sql).await;
        assert_eq!(count, references, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_reset_by_hand_and_erased_by_another_claim_is_not_subtracted_twice() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    world.put("live too", "shared", Never).await;
    world.run_sql(RESET).await;
    drain(&world.worker().await).await;
    carry_out(&worker, &claim).await;
    assert_eq!((world.count(REF_COUNT).await, world.count(LEFT).await), (2, 2));
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_ended_by_hand_together_with_its_rows_restores_no_reference() {
    let world = World::new().await;
    let (worker, claim) = shared(&world).await;
    worker.decrement(&claim).await.expect("decrement");
    let end = format!("BEGIN; UPDATE deletion_claims SET reset_at = now(); {RESET}; COMMIT");
    world.run_sql(&end).await;
    assert_eq!((world.count(KEEPS_REFERENCE).await, world.count(REF_COUNT).await), (0, 1));
    world.sweep().await;
    assert_ends_well(&world, &worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_reset_by_hand_keeps_its_pending_object_delete() {
    let world = World::new().await;
    world.put("one", "own", Ago(61.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    world.run_sql(RESET).await;
    world.expire_leases(7201.0).await;
    world.sweep().await;
    world.end_backoff().await;
    drain(&worker).await;
    assert_eq!((world.count(LEFT).await, world.keys().await.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_object_delete_spares_an_object_whose_content_was_restored_from_a_backup() {
    let world = World::new().await;
    let key = world.put("one", "own", Ago(61.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    world.sweep().await;
    let restore = format!(
        "INSERT INTO content (content_hash, s3_key, ref_count) VALUES (sha256('own'), '{key}', 1);
         INSERT INTO pastes (short_code, content_hash) VALUES ('live', sha256('own'))"
    );
    world.run_sql(&restore).await;
    world.end_backoff().await;
    drain(&worker).await;
    assert_eq!(world.read("live").await.as_deref(), Some("own"));
}
