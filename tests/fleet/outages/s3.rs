//! S3 fails or throttles: nothing is claimed during the outage, and other workers continue.

use super::{
    GOES_ON, WAITS, assert_gave_up, assert_recovered, run, run_with_short_timeouts, world,
};
use crate::support::faulty_s3::{FaultyS3, Mode};

const FAILING: Mode = Mode::Failing { status: 500, code: "InternalError" };

#[tokio::test(flavor = "multi_thread")]
async fn while_s3_fails_nothing_is_claimed_and_the_run_continues_when_s3_recovers() {
    let world = world(80).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let process = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "1", "--concurrency", "64"])
        .env("AWS_ENDPOINT_URL", &s3.url);
    s3.set_mode_after_probe(FAILING);
    let mut worker = process.start();
    worker.until_it_logs(WAITS).await;
    let claims = "SELECT count(*) FROM deletion_claims";
    let before = world.count(claims).await;
    s3.probed(s3.probes() + 3).await;
    assert_eq!(world.count(claims).await, before, "claimed during the outage");
    assert!(before < 64, "the circuit breaker opened too late, after {before} claims");
    s3.set_mode(Mode::Normal);
    worker.until_it_logs(GOES_ON).await;
    assert_recovered(&world, &worker.end().await, 80).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_outage_longer_than_the_run_leaves_nothing_claimed() {
    let world = world(10).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = run_with_short_timeouts(&world).env("AWS_ENDPOINT_URL", &s3.url).start();
    s3.called(1).await;
    s3.set_mode(FAILING);
    let words = ["gave up after 1s", "S3 is unavailable", &world.bucket, "AWS_ENDPOINT_URL"];
    assert_gave_up(&world, &worker.end().await, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_worker_slows_down_while_the_other_workers_continue() {
    let world = world(60).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let throttled = run(&world).args(&["--concurrency", "4"]);
    let throttled = throttled.env("AWS_ENDPOINT_URL", &s3.url).start();
    s3.called(1).await;
    s3.set_mode(Mode::Failing { status: 503, code: "SlowDown" });
    // The throttled worker has at most four open batches; the other worker deletes the rest.
    let other = run(&world).output().await;
    assert_eq!(other.code(), 0, "{}", other.stderr());
    assert!(other.json()["rows_deleted"].as_u64() >= Some(40), "{}", other.stdout());
    s3.called(6).await;
    s3.let_go();
    let ended = throttled.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(
        ended.json()["claims_released"],
        0,
        "throttling is not a failure: {}",
        ended.stderr()
    );
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    world.assert_drained().await;
}
