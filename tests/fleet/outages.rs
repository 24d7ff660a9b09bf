//! Outages of Postgres, Redis or S3 during a run, and for longer than the run. Outages at start are
//! in `start_errors.rs`, a primary that is lost permanently in `failover.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    postgres::Postgres,
    process::{Ended, Running},
    proxy::{Proxy, address_of},
    servers::Redis,
    small_disk::SmallDisk,
    *,
};

const FAILING: Mode = Mode::Failing { status: 500, code: "InternalError" };
const OPEN: &str =
    "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
/// What a worker says when it stops claiming, and when it goes on.
const WAITS: &str = "paused claims";
const GOES_ON: &str = "resumed claims";

/// Creates a world with this many expired pastes and a live one.
async fn world(pastes: usize) -> World {
    let world = World::new().await;
    fill(&world, pastes).await;
    world
}

async fn fill(world: &World, pastes: usize) {
    for n in 0..pastes {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
}

/// A run with small batches.
fn run(world: &World) -> Process {
    world.program("cleanup-worker").args(&["run", "--format", "json", "--batch-size", "5"])
}

/// A run that gives up after one second without Postgres, but waits for S3.
fn run_that_waits_for_s3(world: &World) -> Process {
    run_with_short_timeouts(world).env("CLEANUP_S3_DEADLINE", "60s")
}

/// A run with timeouts of one second.
fn run_with_short_timeouts(world: &World) -> Process {
    run(world)
        .env("CLEANUP_WORKER_OUTAGE_TIMEOUT", "1s")
        .env("CLEANUP_WORKER_GRACE_PERIOD", "1s")
        .env("CLEANUP_S3_DEADLINE", "1s")
}

/// Asserts that the run deleted everything in the end, and that no paste lost an attempt.
async fn assert_recovered(world: &World, ended: &Ended, pastes: usize) {
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!((&summary["rows_deleted"], &summary["rows_failed"]), (&pastes.into(), &0.into()));
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

/// Asserts that the run gave up with one line that contains these words, that nothing is claimed or
/// lost, and that no paste lost an attempt.
async fn assert_gave_up(world: &World, ended: &Ended, words: &[&str]) {
    ended.assert_refused(1, words);
    assert_eq!(ended.json()["stopped_because"], "failed", "{}", ended.stderr());
    assert_eq!(world.count(OPEN).await, 0, "a claim was left behind: {}", ended.stderr());
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    world.assert_consistent().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn with_when_unavailable_wait_a_long_redis_outage_ends_the_run_with_nothing_claimed() {
    let world = world(5).await;
    let mut redis = Redis::start().await;
    redis.kill().await;
    let ended = run_with_short_timeouts(&world)
        .env("REDIS_URL", &redis.url())
        .env("CLEANUP_LOCK_WHEN_UNAVAILABLE", "wait")
        .env("CLEANUP_LOCK_TTL", "3s")
        .output()
        .await;
    assert_gave_up(&world, &ended, &["Redis is unavailable", "lock.when_unavailable"]).await;
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_hangs_is_tried_now_and_then_instead_of_for_every_claim() {
    let world = world(60).await;
    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("redis://{}", hanging.local_addr().expect("address"));
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tried);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = hanging.accept().await {
            counter.fetch_add(1, Relaxed);
            kept.push(stream);
        }
    });
    let started = Instant::now();
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "1"])
        .env("REDIS_URL", &url)
        .env("CLEANUP_CACHE_KEY_PATTERN", "paste:{short_code}")
        .output()
        .await;
    assert_recovered(&world, &ended, 60).await;
    assert!(ended.json()["claims_without_lock"].as_u64() >= Some(60));
    // On a slow machine there is time for more cooldowns.
    let (tried, most) = (tried.load(Relaxed), 30 + started.elapsed().as_secs() as usize * 3 / 10);
    assert!(tried < most, "{tried} of 120 times, at most {most} are expected");
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

/// The server was down for longer than `stuck_after`. A sweep right after its start finds every lease
/// expired, although the workers are alive.
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
