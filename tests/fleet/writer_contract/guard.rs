//! The trigger `pastes_guard`: a paste that is being deleted or decremented cannot be changed.

use tokio_postgres::error::SqlState;

use super::assert_refused;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_content_of_a_paste_in_progress_cannot_be_changed() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    for change in [
        "expires_at = now() + interval '1 day'",
        "expires_at = NULL",
        "content_hash = 'x'",
        "content_hash = NULL",
        "content_hash = 'x', deletion_status = 'NOT_EXPIRED'",
        "expires_at = NULL, deletion_status = 'NOT_EXPIRED'",
    ] {
        let update = format!("UPDATE pastes SET {change}");
        assert_refused(&world, &SqlState::OBJECT_IN_USE, &update).await;
    }
    world.run_sql("UPDATE pastes SET expires_at = expires_at, created_at = now()").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decremented_paste_cannot_be_revived() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    worker.release(claim.fence, "test").await.expect("release");
    let state = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    let later = "UPDATE pastes SET expires_at = now() + interval '1 day'";
    assert_refused(&world, &state, later).await;
    assert_refused(&world, &state, "UPDATE pastes SET content_hash = 'x'").await;
    world.end_backoff().await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_cannot_be_revived() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world
        .worker_with(|settings| {
            settings.retention.tombstones = std::time::Duration::from_secs(3600);
        })
        .await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let state = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;
    assert_refused(&world, &state, "UPDATE pastes SET expires_at = NULL").await;
    assert_refused(&world, &state, "UPDATE pastes SET content_hash = 'x'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_allows_a_reset_by_the_fleet() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.rows, 1);
    let reset = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                 AND content_hash IS NULL AND pending_s3_key IS NOT NULL";
    assert_eq!(world.count(reset).await, 1);
}
