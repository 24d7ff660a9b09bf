//! Claim ids that were reused: only `pastes` and `content` were restored, or the claims truncated.

use super::*;
use crate::support::*;

/// Leaves thirty rows of a claim that no longer exists, and restarts the ids.
async fn ids_start_again(world: &World) {
    world.put_many(30, 30).await;
    let worker = world.worker().await;
    claim_some(&worker, 30).await;
    world.run_sql("TRUNCATE deletion_claims RESTART IDENTITY").await;
    world.run_sql("UPDATE pastes SET expires_at = expires_at WHERE false").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_deletes_no_rows_of_an_older_claim_with_the_same_id() {
    let world = World::new().await;
    let worker = world.worker().await;
    ids_start_again(&world).await;
    world.put("new", "new", Ago(60.0)).await;
    let claim = claim_some(&worker, 10).await;
    assert_eq!(claim.fence.claim, 1, "the id of the older claim");
    carry_out(&worker, &claim).await;
    assert_eq!(world.count(LEFT).await, 30);
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    // A sweep resets them, with their references.
    let old = "UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'";
    world.run_sql(old).await;
    assert_eq!(world.sweep().await.stranded, 30);
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    world.end_backoff().await;
    assert_eq!(drain(&worker).await.rows_deleted, 30);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_takes_no_reference_from_rows_of_an_older_claim_with_the_same_id() {
    let world = World::new().await;
    let worker = world.worker().await;
    ids_start_again(&world).await;
    world.put("new", "new", Ago(60.0)).await;
    let claim = claim_some(&worker, 10).await;
    worker.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows), (1, 1));
    let kept = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL";
    assert_eq!(world.count(kept).await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recount_counts_the_rows_of_an_older_claim_with_the_id_of_a_decremented_one() {
    let world = World::new().await;
    world.put("old", "shared", Ago(90.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    world.run_sql("TRUNCATE deletion_claims RESTART IDENTITY").await;
    world.put("new", "shared", Ago(60.0)).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let claim = claim_some(&worker, 10).await;
    assert_eq!((claim.fence.claim, codes(&claim)), (1, vec!["new".into()]));
    worker.decrement(&claim).await.expect("decrement");
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2, "old and live");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_a_decremented_claim_never_regains_its_reference() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    // An operator ends the claim while its row is still in progress.
    world.run_sql("UPDATE deletion_claims SET finished_at = now()").await;
    assert_eq!(world.sweep().await.stranded, 1);
    let reset = "SELECT count(*) FROM pastes WHERE short_code = 'a' AND content_hash IS NULL
                AND deletion_status = 'NOT_EXPIRED'";
    assert_eq!(world.count(reset).await, 1);
    world.end_backoff().await;
    drain(&worker).await;
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_violation_on_claim_ids_is_not_a_row_error() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    // The worker checked the ids when it started, before these claims existed.
    let worker = world.worker().await;
    world
        .run_sql(
            "INSERT INTO deletion_claims (id, worker, rows_claimed, finished_at)
             SELECT n, gen_random_uuid(), 1, now() FROM generate_series(1, 3) n",
        )
        .await;
    let summary = drain(&worker).await;
    assert_eq!((world.count(LEFT).await, summary.rows_failed), (0, 0));
    assert_eq!(world.count("SELECT count(*) FROM cleanup_unclaimable").await, 0);
}
