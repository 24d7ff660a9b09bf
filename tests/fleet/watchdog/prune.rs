//! Old claims and tombstones are deleted after their retention.

use std::time::Duration;

use paste_cleanup::watchdog::{prune::prune, totals};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn pruning_deletes_old_history_and_never_an_open_claim() {
    let world = World::new().await;
    world.put_many(30, 30).await;
    let worker = world.worker().await;
    let [open, old, young] = [
        claim_some(&worker, 10).await,
        claim_some(&worker, 10).await,
        claim_some(&worker, 10).await,
    ]
    .map(|claim| claim.fence.claim);
    world
        .run_sql(&format!(
            "UPDATE deletion_claims SET claimed_at = now() - interval '90 days',
                                        heartbeat_at = now() - interval '90 days';
             UPDATE deletion_claims SET finished_at = now() - interval '31 days' WHERE id = {old};
             UPDATE deletion_claims SET finished_at = now() - interval '29 days' WHERE id = {young}"
        ))
        .await;
    let pool = world.watchdog_pool();
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 0, "not before it is counted in the totals");
    totals::count(&pool, &world.settings).await.expect("count");
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 0, "nor while rows of it are still in progress");
    world.run_sql(&format!("DELETE FROM pastes WHERE claim_id IN ({old}, {young})")).await;
    let pruned = prune(&pool, &world.settings).await.expect("prune");
    assert_eq!(pruned.claims, 1);
    let left = "SELECT count(*) FROM deletion_claims WHERE id = ANY ($1)";
    assert_eq!(world.count_with(left, &[&vec![open, young]]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_stay_for_their_retention_and_are_purged_after_it() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    world.put("live", "b", Never).await;
    let worker =
        world.worker_with(|s| s.retention.tombstones = Duration::from_secs(7 * 86400)).await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let tombstone = "SELECT count(*) FROM pastes WHERE short_code = 'expired'
                  AND deletion_status = 'DELETED' AND content_hash IS NULL AND claim_id IS NULL";
    assert_eq!(world.count(tombstone).await, 1);
    world.assert_drained().await;
    let pool = world.watchdog_pool();
    assert_eq!(prune(&pool, &worker.settings).await.expect("prune").tombstones, 0);
    world
        .run_sql(
            "UPDATE pastes SET deletion_initiated_at = deletion_initiated_at - interval '8 days'
                  WHERE short_code = 'expired'",
        )
        .await;
    assert_eq!(prune(&pool, &worker.settings).await.expect("prune").tombstones, 1);
    assert_eq!(world.read("live").await.as_deref(), Some("b"));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_with_content_or_a_pending_object_delete_is_not_pruned() {
    let world = World::new().await;
    for code in ["content", "pending", "ours"] {
        world.put(code, code, Ago(60.0)).await;
    }
    // Two tombstones of another system, and one of the fleet.
    world
        .run_sql(
            "UPDATE pastes SET content_hash = NULL WHERE short_code <> 'content';
             UPDATE pastes SET pending_s3_key = 'k' WHERE short_code = 'pending';
             UPDATE pastes SET deletion_status = 'DELETED',
                               deletion_initiated_at = now() - interval '1 day'",
        )
        .await;
    let pruned = prune(&world.watchdog_pool(), &world.settings).await.expect("prune");
    assert_eq!(pruned.tombstones, 1);
    let left = "SELECT string_agg(short_code, ',' ORDER BY short_code) FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("content,pending"));
}
