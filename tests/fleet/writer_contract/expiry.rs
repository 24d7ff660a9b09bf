//! `paste_extend` and `paste_expire_now`.

use super::{expire_now, extend, until_it_waits};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_extended_paste_stays_live_and_its_failures_are_cleared() {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    world
        .run_sql("UPDATE pastes SET attempts = 3, retry_at = 'infinity', last_error = 'locked'")
        .await;
    assert!(extend(&world.db, "p").await);
    let clean = "SELECT count(*) FROM pastes WHERE expires_at > now() + interval '23 hours'
                 AND attempts = 0 AND retry_at IS NULL AND last_error IS NULL";
    assert_eq!(world.count(clean).await, 1);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 0);
    assert_eq!(world.read("p").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_can_be_extended_to_never_expire() {
    let world = World::new().await;
    world.put("p", "a", In(60.0)).await;
    let extended = "SELECT paste_extend('p', NULL)";
    assert!(world.db.query_one(extended, &[]).await.expect("extend").get::<_, bool>(0));
    let never = "SELECT count(*) FROM pastes WHERE expires_at IS NULL";
    assert_eq!(world.count(never).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_being_deleted_or_gone_cannot_be_extended() {
    let world = World::new().await;
    for code in ["claimed", "decremented"] {
        world.put(code, code, Ago(60.0)).await;
    }
    let worker = world.worker().await;
    claim_some(&worker, 1).await;
    assert!(!extend(&world.db, "claimed").await, "in progress");
    let decremented = claim_some(&worker, 1).await;
    worker.decrement(&decremented).await.expect("decrement");
    worker.release(decremented.fence, "test").await.expect("release");
    assert!(!extend(&world.db, "decremented").await, "its reference is gone");
    world.put("tombstone", "t", Ago(60.0)).await;
    world
        .run_sql("UPDATE pastes SET deletion_status = 'DELETED' WHERE short_code = 'tombstone'")
        .await;
    assert!(!extend(&world.db, "tombstone").await);
    assert!(!extend(&world.db, "unknown").await);
    let touched = "SELECT count(*) FROM pastes WHERE expires_at > now()";
    assert_eq!(world.count(touched).await, 0, "nothing was changed");
}

/// Extends a paste while a claim of it is uncommitted, then ends the claim by COMMIT or ROLLBACK.
async fn extend_during_a_claim_that_ends_by(end: &str) -> bool {
    let world = World::new().await;
    world.put("p", "a", Ago(60.0)).await;
    let claiming = connect(&world.database_url).await;
    let mark = "BEGIN;
                WITH claim AS (INSERT INTO deletion_claims (worker, rows_claimed)
                               VALUES (gen_random_uuid(), 1) RETURNING id)
                UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                  deletion_initiated_at = now(), claim_id = claim.id FROM claim";
    claiming.batch_execute(mark).await.expect("claim");
    let extending = until_it_waits(&world, |db| async move { extend(&db, "p").await }).await;
    claiming.batch_execute(end).await.expect(end);
    let extended = extending.await.expect("extend");
    let in_future = world.count("SELECT count(*) FROM pastes WHERE expires_at > now()").await;
    assert_eq!(in_future == 1, extended, "the result says what it did");
    extended
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_waited_for_a_claim_reports_that_it_is_too_late() {
    assert!(!extend_during_a_claim_that_ends_by("COMMIT").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_waited_for_a_claim_which_is_rolled_back_succeeds() {
    assert!(extend_during_a_claim_that_ends_by("ROLLBACK").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn expire_now_makes_a_live_paste_due() {
    let world = World::new().await;
    world.put("hour", "a", In(3600.0)).await;
    world.put("never", "b", Never).await;
    assert!(expire_now(&world.db, "hour").await);
    assert!(expire_now(&world.db, "never").await);
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 2);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expire_now_does_nothing_for_a_paste_that_is_expired_in_progress_or_gone() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    assert!(!expire_now(&world.db, "expired").await);
    let worker = world.worker().await;
    let claimed = claim_some(&worker, 1).await;
    assert_eq!(codes(&claimed), ["expired"], "it kept its place in the queue");
    assert!(!expire_now(&world.db, "expired").await, "in progress");
    assert!(!expire_now(&world.db, "unknown").await);
}
