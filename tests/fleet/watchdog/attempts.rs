//! What a reset costs a row: an attempt, a backoff, and in the end the state of a dead letter.

use std::time::Duration;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_row_backs_off_by_the_square_of_its_attempts_up_to_the_cap() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let mut settings = world.settings.clone();
    settings.worker.max_attempts = 100;
    settings.worker.backoff_cap = Duration::from_secs(10);
    for (attempts, pause) in [(1, 1), (2, 4), (3, 9), (4, 10)] {
        claim_some(&worker, 10).await;
        world.expire_leases(7201.0).await;
        world.sweep_with(&settings).await;
        let state = "SELECT count(*) FROM pastes p, deletion_claims c
                     WHERE p.attempts = $1 AND c.id = (SELECT max(id) FROM deletion_claims)
                       AND p.retry_at = c.reset_at + $2 * interval '1 second'";
        let (attempts, pause) = (attempts as i16, f64::from(pause));
        assert_eq!(world.count_with(state, &[&attempts, &pause]).await, 1, "attempt {attempts}");
        world.end_backoff().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_failed_alone_too_often_is_a_dead_letter_with_its_last_error() {
    let world = World::new().await;
    world.put("culprit", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    for _ in 0..5 {
        claim_some(&worker, 1000).await;
        world.expire_leases(7201.0).await;
        world.sweep().await;
        world.end_backoff().await;
    }
    let dead = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity' AND attempts = 5
                AND deletion_status = 'NOT_EXPIRED' AND last_error LIKE 'worker lease expired%'";
    assert_eq!(world.count(dead).await, 1);
    assert!(claim(&worker, 10).await.is_none(), "waits for an operator");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_failed_in_a_larger_batch_is_never_dead_lettered() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    world.run_sql("UPDATE pastes SET attempts = 1").await;
    let worker = world.worker().await;
    let mut settings = world.settings.clone();
    settings.worker.max_attempts = 2;
    assert_eq!(claim_some(&worker, 200).await.pastes.len(), 20);
    world.expire_leases(7201.0).await;
    let swept = world.sweep_with(&settings).await;
    assert_eq!((swept.reset.rows, swept.reset.dead_letters), (20, 0));
}
