//! Zombies: whoever lost its claim touches nothing any more.

mod support;

use paste_cleanup::{
    claim::{Claim, StepError},
    worker::{Worker, delete_objects::ObjectsGone},
};
use support::*;

/// Everything that the zombie could still change.
async fn snapshot(world: &World) -> Vec<String> {
    let all = "SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM pastes t
               UNION ALL SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM content t
               UNION ALL SELECT coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '') FROM deletion_claims t";
    world.db.query(all, &[]).await.expect("snapshot").iter().map(|row| row.get(0)).collect()
}

async fn assert_powerless(world: &World, zombie: &Worker, claim: &Claim) {
    let before = snapshot(world).await;
    let lost = zombie.open.insert(
        claim.fence.claim,
        tokio::time::Instant::now(),
        zombie.settings.s3.deadline,
    );
    zombie.beat(&world.db).await.expect("beat");
    assert!(lost.is_cancelled(), "the beat tells the zombie that it lost its claim");
    assert!(matches!(zombie.release(claim).await, Err(StepError::Lost(_))), "release");
    let finished = zombie.finish(claim, &ObjectsGone::default(), &Default::default()).await;
    assert!(matches!(finished, Err(StepError::Lost(_))), "finish");
    let given = zombie.give_back(claim.fence, "zombie").await.expect("give back");
    assert_eq!(given.rows, 0, "give back");
    assert_eq!(snapshot(world).await, before, "the zombie changed something");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombies_beat_release_and_finish_touch_nothing() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let zombie = world.worker().await;
    let stale = claim_some(&zombie, 10).await;
    world.silence_claims(7201.0).await;
    world.sweep().await;
    assert_powerless(&world, &zombie, &stale).await;
    world.end_backoff().await;
    let heir = world.worker().await;
    let fresh = claim_some(&heir, 10).await;
    assert_powerless(&world, &zombie, &stale).await;
    carry_out(&heir, &fresh).await;
    assert_powerless(&world, &zombie, &stale).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_that_had_released_cannot_finish() {
    let world = World::new().await;
    world.put("a", "only", Ago(60.0)).await;
    let zombie = world.worker().await;
    let stale = claim_some(&zombie, 10).await;
    let released = zombie.release(&stale).await.expect("release");
    world.silence_claims(7201.0).await;
    world.sweep().await;
    // Its late deletion is harmless, but the row is not its own any more.
    let objects = zombie.delete_objects(&stale, &released).await.expect("late delete");
    let finished = zombie.finish(&stale, &objects, &Default::default()).await;
    assert!(matches!(finished, Err(StepError::Lost(_))));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_claims_by_the_same_worker_are_told_apart() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    let first = claim_some(&worker, 10).await;
    world.silence_claims(7201.0).await;
    world.sweep().await;
    world.end_backoff().await;
    let second = claim_some(&worker, 10).await;
    assert_powerless(&world, &worker, &first).await;
    carry_out(&worker, &second).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_id_that_is_handed_out_twice_still_fences() {
    let world = World::new().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let before_the_crash = world.worker().await;
    let stale = claim_some(&before_the_crash, 10).await;
    // A crash of Postgres that lost the commit: rows, claim and sequence are as before.
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
