//! S3 as a whole fails: claims are released, no row loses an attempt, and everything is deleted once
//! S3 recovers.

use paste_cleanup::worker::report::StoppedBecause;

use super::{SHORT, refusing, world_within};
use crate::support::{faulty_s3::Mode, *};

/// Asserts that claims are released without an attempt while S3 fails, and that everything is deleted
/// once it recovers.
async fn assert_costs_no_attempt(mode: Mode) {
    let (world, s3, worker) = world_within(SHORT).await;
    for n in 0..5 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
    s3.set_mode(mode);
    let running = tokio::spawn(async move { drain(&worker).await });
    world
        .until("released", "SELECT count(*) > 0 FROM deletion_claims WHERE reset_at IS NOT NULL")
        .await;
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0, "a row lost an attempt");
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE retry_at IS NOT NULL").await, 0);
    s3.set_mode(Mode::Normal);
    let summary = running.await.expect("run");
    assert_eq!((summary.stopped_because, summary.rows_failed), (StoppedBecause::Drained, 0));
    assert!(summary.claims_released > 0);
    let dead = "SELECT count(*) FROM pastes WHERE attempts > 0";
    assert_eq!(world.count(dead).await, 0);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_outage_never_costs_a_row_an_attempt() {
    assert_costs_no_attempt(Mode::Failing { status: 500, code: "InternalError" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_that_is_throttled_past_the_deadline_never_costs_a_row_an_attempt() {
    assert_costs_no_attempt(Mode::Failing { status: 503, code: "SlowDown" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_credentials_never_cost_a_row_an_attempt() {
    assert_costs_no_attempt(Mode::Failing { status: 403, code: "AccessDenied" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_denied_key_by_key_never_cost_a_row_an_attempt() {
    // Every key contains the empty text, that of the probe included.
    assert_costs_no_attempt(refusing(String::new(), "AccessDenied")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_the_body_of_a_200_never_costs_a_row_an_attempt() {
    assert_costs_no_attempt(Mode::ErrorInBody { code: "SlowDown" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_mentions_no_key_never_costs_a_row_an_attempt() {
    assert_costs_no_attempt(Mode::EmptyAnswer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_write_quorum_never_costs_a_row_an_attempt() {
    // MinIO's error for each key while too many of its disks are offline.
    assert_costs_no_attempt(refusing(String::new(), "SlowDownWrite")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_error_code_costs_no_row_an_attempt_while_the_probe_gets_it_too() {
    assert_costs_no_attempt(refusing(String::new(), "SomethingNew")).await;
}
