//! The resident scheduler: fires, skips overlaps, stops gracefully.

mod support;

use chrono::{TimeDelta, Utc};
use support::{
    faulty_s3::{FaultyS3, Mood},
    proxy::{Proxy, address_of},
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_schedule_fires_skips_a_tick_that_overlaps_and_fires_again() {
    let world = World::new().await;
    world.put("first", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mood::Holding).await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["schedule"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_SCHEDULE_CRON", "* * * * * *")
        .env("CLEANUP_SCHEDULE_TIMEZONE", "Europe/Berlin")
        .start();
    worker.until_it_says("waiting for").await;
    s3.called(1).await;
    worker.until_it_says("skipped a tick: the last run is still going").await;
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 1, "no overlap");
    s3.let_go();
    world.put("second", "b", Ago(60.0)).await;
    world.until("the next tick deletes", "SELECT count(*) = 0 FROM pastes").await;
    worker.signal(Signal::TERM);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_stopped_in_mid_run_leaves_nothing_claimed() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mood::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["schedule"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_SCHEDULE_CRON", "* * * * * *")
        .env("CLEANUP_WORKER_GRACE_PERIOD", "100ms")
        .start();
    s3.called(1).await;
    worker.signal(Signal::TERM);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let claimed = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";
    assert_eq!(world.count(claimed).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_gave_up_its_batches_at_the_deadline_does_not_spoil_the_next_one() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mood::Holding).await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["schedule", "--run-time", "1s"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_SCHEDULE_CRON", "* * * * * *")
        .env("CLEANUP_WORKER_GRACE_PERIOD", "100ms")
        .start();
    worker.until_it_says("gave back claim").await;
    s3.let_go();
    world.until("the next run deletes", "SELECT count(*) = 0 FROM pastes").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_night_that_begins_during_an_outage_is_not_lost() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let proxy = Proxy::start(&address_of(&world.database_url)).await;
    // Once a day: nothing but the wait for Postgres makes up for a missed tick.
    let once = (Utc::now() + TimeDelta::seconds(8)).format("%-S %-M %-H * * *").to_string();
    let mut worker = world
        .program("cleanup-worker")
        .args(&["schedule"])
        .env("DATABASE_URL", &proxy.through(&world.worker_url()))
        .env("CLEANUP_SCHEDULE_CRON", &once)
        .start();
    worker.until_it_says("waiting for").await;
    proxy.down();
    worker.until_it_says("cannot start yet").await;
    proxy.up();
    world.until("the night's run deletes", "SELECT count(*) = 0 FROM pastes").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}
