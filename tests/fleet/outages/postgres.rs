//! Postgres is down, full, read-only or out of connections: a run waits and continues, or gives up
//! and releases its claims.

use super::{
    OPEN, WAITS, assert_gave_up, assert_recovered, fill, run, run_with_short_timeouts, world,
};
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    postgres::Postgres,
    process::Running,
    proxy::{Proxy, address_of},
    small_disk::SmallDisk,
    *,
};

/// A run that gives up after one second without Postgres, but waits for S3.
fn run_that_waits_for_s3(world: &World) -> Process {
    run_with_short_timeouts(world).env("CLEANUP_S3_DEADLINE", "60s")
}

/// Starts a worker behind a proxy to Postgres, and waits until S3 holds its first batch.
async fn holding_a_batch(world: &World, process: Process) -> (Running, Proxy, FaultyS3) {
    let proxy = Proxy::start(&address_of(&world.database_url)).await;
    let s3 = FaultyS3::start(world, Mode::Holding).await;
    let url = proxy.through(&world.worker_url());
    let worker = process.env("DATABASE_URL", &url).env("AWS_ENDPOINT_URL", &s3.url).start();
    s3.called(1).await;
    (worker, proxy, s3)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_after_a_postgres_outage() {
    let world = world(30).await;
    let (mut worker, proxy, s3) = holding_a_batch(&world, run(&world)).await;
    proxy.down();
    s3.let_go();
    worker.until_it_logs("retrying").await;
    proxy.up();
    let ended = worker.end().await;
    assert_eq!(ended.json()["claims_released"], 0, "{}", ended.stderr());
    assert_recovered(&world, &ended, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_gave_up_on_postgres_stays_until_it_can_release_its_claims() {
    let world = world(30).await;
    let (mut worker, proxy, s3) = holding_a_batch(&world, run_that_waits_for_s3(&world)).await;
    proxy.down();
    s3.let_go();
    worker.until_it_logs("waiting to release open claims before exit").await;
    assert!(world.count(OPEN).await > 0, "nothing to release");
    proxy.up();
    assert_gave_up(&world, &worker.end().await, &["gave up after 1s"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stopped_during_a_postgres_outage_reports_what_it_leaves_to_the_watchdog() {
    let world = world(30).await;
    let (mut worker, proxy, s3) = holding_a_batch(&world, run_that_waits_for_s3(&world)).await;
    proxy.down();
    s3.let_go();
    worker.signal(Signal::TERM);
    worker.until_it_logs("waiting to release open claims before exit").await;
    let ended = worker.end().await;
    ended.assert_refused(
        1,
        &["could not release the open claims", "the watchdog resets them after 2h"],
    );
    world.expire_leases(7201.0).await;
    assert!(world.sweep().await.reset.claims > 0);
    world.assert_consistent().await;
}

/// Asserts that a run stops claiming during a problem of the server, logs the reason, and continues
/// when `over` has ended the problem.
async fn assert_waits_out(world: &World, reason: &str, over: impl Future<Output = ()>) {
    let mut worker = run(world).start();
    let line = worker.until_it_logs(WAITS).await;
    assert!(line.contains(reason), "{line}");
    assert_eq!(world.count(OPEN).await, 0);
    over.await;
    assert_recovered(world, &worker.end().await, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_are_waited_out() {
    let postgres = Postgres::start(&[]).await;
    let world = World::on_server(&postgres).await;
    fill(&world, 30).await;
    // The worker connects before the limit is set, as it would in the middle of a run.
    let (mut worker, s3) = {
        let s3 = FaultyS3::start(&world, Mode::Holding).await;
        (run(&world).env("AWS_ENDPOINT_URL", &s3.url).start(), s3)
    };
    s3.called(1).await;
    world
        .run_sql(
            "ALTER ROLE suite_worker CONNECTION LIMIT 0;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'suite_worker'",
        )
        .await;
    s3.let_go();
    let line = worker.until_it_logs("too many connections").await;
    assert!(line.contains("53300"), "{line}");
    world.run_sql("ALTER ROLE suite_worker CONNECTION LIMIT -1").await;
    assert_recovered(&world, &worker.end().await, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_read_only_is_waited_out() {
    let postgres = Postgres::start(&[]).await;
    let world = World::on_server(&postgres).await;
    fill(&world, 30).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let mut worker = run(&world).env("AWS_ENDPOINT_URL", &s3.url).start();
    s3.called(1).await;
    postgres.configure(&["default_transaction_read_only = on"]).await;
    postgres.reload().await;
    world.until("read-only", "SELECT current_setting('transaction_read_only') = 'on'").await;
    s3.let_go();
    worker.until_it_logs("does not allow writes").await;
    postgres.configure(&["default_transaction_read_only = off"]).await;
    postgres.reload().await;
    assert_recovered(&world, &worker.end().await, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_waited_out_or_ends_the_run_with_nothing_claimed() {
    let mut disk = None;
    let postgres = Postgres::initialised(|data| {
        let small = disk.insert(SmallDisk::mount(data, "160m"));
        small.wrapper()
    })
    .await;
    let disk = disk.expect("a disk");
    postgres.start_again().await;
    let world = World::on_server(&postgres).await;
    fill(&world, 30).await;
    // Each row fills its page, so that marking one needs a new page.
    let ballast = "ALTER TABLE pastes ADD ballast text;
                   ALTER TABLE pastes ALTER ballast SET STORAGE PLAIN;
                   UPDATE pastes SET ballast = repeat('x', 7000) WHERE short_code <> 'live'";
    world.run_sql(ballast).await;
    world.run_sql("VACUUM FULL pastes").await;
    disk.fill();
    let ended = run_with_short_timeouts(&world).output().await;
    assert_gave_up(&world, &ended, &["No space left on device", "53100"]).await;
    assert_waits_out(&world, "No space left on device", async { disk.make_room() }).await;
}

/// The server was down for longer than `stuck_after`. A sweep right after its start finds every
/// lease expired, although the workers are alive.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_longer_than_stuck_after_live_workers_keep_their_claims() {
    let postgres = Postgres::start(&[]).await;
    let world = World::on_server(&postgres).await;
    fill(&world, 30).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let times = |process: Process| {
        process
            .env("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "3s")
            .env("CLEANUP_WATCHDOG_STUCK_AFTER", "9s")
    };
    let mut worker = times(run(&world)).env("AWS_ENDPOINT_URL", &s3.url).start();
    s3.called(1).await;
    postgres.stop_immediately().await;
    worker.until_it_logs("no heartbeat reached Postgres for").await;
    postgres.start_again().await;
    let sweep = times(world.program("cleanup-watchdog")).args(&["--once"]).output();
    let (swept, ()) = tokio::join!(sweep, async { s3.let_go() });
    assert!(swept.stderr().contains("Postgres has just started"), "{}", swept.stderr());
    assert!(swept.stdout().starts_with("reset 0 claims"), "{}", swept.stdout());
    let world = World { db: connect(&world.database_url).await, ..world };
    assert_recovered(&world, &worker.end().await, 30).await;
}
