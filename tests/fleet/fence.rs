//! Fencing: a worker whose claim was reset (a zombie) changes nothing.

use crate::support::*;
use paste_cleanup::{
    claim::{Claim, StepError},
    worker::{Worker, batch::delete_objects::ObjectsDeleted},
};

/// Returns every row that the zombie could change.
async fn snapshot(world: &World) -> Vec<String> {
    let all = "SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM pastes t
               UNION ALL SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM content t
               UNION ALL SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM deletion_claims t";
    world.db.query(all, &[]).await.expect("snapshot").iter().map(|row| row.get(0)).collect()
}

/// Asserts that no step of the zombie changes anything.
async fn assert_powerless(world: &World, zombie: &Worker, claim: &Claim) {
    let before = snapshot(world).await;
    let lost = zombie.open.insert(
        claim.fence.claim,
        tokio::time::Instant::now(),
        zombie.settings.s3.deadline,
    );
    zombie.heartbeat(&world.db).await.expect("heartbeat");
    assert!(lost.is_cancelled(), "the heartbeat tells the zombie that it lost its claim");
    assert!(matches!(zombie.decrement(claim).await, Err(StepError::LeaseLost(_))), "decrement");
    let finished = zombie.finish(claim, &ObjectsDeleted::default(), &Default::default()).await;
    assert!(matches!(finished, Err(StepError::LeaseLost(_))), "finish");
    let given = zombie.release(claim.fence, "zombie").await.expect("release");
    assert_eq!(given.rows, 0, "release");
    assert_eq!(snapshot(world).await, before, "the zombie changed something");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heartbeat_decrement_and_finish_of_a_reset_worker_change_nothing() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let zombie = world.worker().await;
    let stale = claim_some(&zombie, 10).await;
    world.expire_leases(7201.0).await;
    world.sweep().await;
    assert_powerless(&world, &zombie, &stale).await;
    world.end_backoff().await;
    let successor = world.worker().await;
    let fresh = claim_some(&successor, 10).await;
    assert_powerless(&world, &zombie, &stale).await;
    carry_out(&successor, &fresh).await;
    assert_powerless(&world, &zombie, &stale).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_worker_cannot_finish_its_batch() {
    let world = World::new().await;
    world.put("a", "only", Ago(60.0)).await;
    let zombie = world.worker().await;
    let stale = claim_some(&zombie, 10).await;
    let decremented = zombie.decrement(&stale).await.expect("decrement");
    world.expire_leases(7201.0).await;
    world.sweep().await;
    // Its late object delete is harmless, but the row belongs to another claim now.
    let objects = zombie.delete_objects(&stale, &decremented).await.expect("late delete");
    let finished = zombie.finish(&stale, &objects, &Default::default()).await;
    assert!(matches!(finished, Err(StepError::LeaseLost(_))));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_claim_of_the_same_worker_is_fenced_off() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    let first = claim_some(&worker, 10).await;
    world.expire_leases(7201.0).await;
    world.sweep().await;
    world.end_backoff().await;
    let second = claim_some(&worker, 10).await;
    assert_powerless(&world, &worker, &first).await;
    carry_out(&worker, &second).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_claim_id_is_still_fenced_off() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let before_the_crash = world.worker().await;
    let stale = claim_some(&before_the_crash, 10).await;
    // A crash of Postgres that lost the commit: rows, claim and sequence are as they were before it.
    world
        .run_sql(&format!(
            "DELETE FROM deletion_claims;
             UPDATE pastes SET deletion_status = 'NOT_EXPIRED', deletion_initiated_at = NULL,
                               claim_id = NULL WHERE short_code = 'a';
             ALTER TABLE deletion_claims ALTER COLUMN id RESTART WITH {}",
            stale.fence.claim
        ))
        .await;
    let after = world.worker().await;
    let fresh = claim_some(&after, 10).await;
    assert_eq!(fresh.fence.claim, stale.fence.claim, "the same id again");
    assert_powerless(&world, &before_the_crash, &stale).await;
    carry_out(&after, &fresh).await;
    world.assert_drained().await;
}
