//! Signals: SIGTERM leaves nothing claimed, SIGKILL only claims that the watchdog resets.

use std::time::Duration;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::Running,
    proxy::{Fault, Proxy, address_of},
    *,
};

const OPEN: &str =
    "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
const CLAIMED: &str = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";

/// Starts a worker process whose first two batches are held in S3.
async fn held_worker(world: &World, grace: &str) -> (FaultyS3, Running) {
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
    let s3 = FaultyS3::start(world, Mode::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "5", "--concurrency", "2"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_WORKER_GRACE_PERIOD", grace)
        .env("CLEANUP_S3_DEADLINE", "1h")
        .start();
    s3.called(2).await;
    (s3, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_releases_what_cannot_be_finished_and_nothing_stays_claimed() {
    let world = World::new().await;
    let (_s3, worker) = held_worker(&world, "300ms").await;
    assert_eq!(world.count(CLAIMED).await, 10);
    worker.signal(Signal::TERM);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(summary["stopped_because"], "signal");
    assert_eq!(summary["claims_released"], 2);
    assert_eq!((world.count(OPEN).await, world.count(CLAIMED).await), (0, 0));
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0, "costs no attempt");
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 20);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_open_batches_within_the_grace_period_and_claims_no_more() {
    let world = World::new().await;
    let (s3, mut worker) = held_worker(&world, "60s").await;
    worker.signal(Signal::TERM);
    worker.until_it_logs("finishing 2 open batches").await;
    s3.let_go();
    let ended = worker.end().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["rows_deleted"], 10);
    assert_eq!((world.count(OPEN).await, world.count(CLAIMED).await), (0, 0));
    assert_eq!(ended.json()["left"]["due"], 10, "the summary reports the backlog");
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_releases_at_once() {
    let world = World::new().await;
    let (_s3, mut worker) = held_worker(&world, "1h").await;
    worker.signal(Signal::INT);
    worker.until_it_logs("finishing 2 open batches").await;
    worker.signal(Signal::INT);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!((world.count(OPEN).await, world.count(CLAIMED).await), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_leaves_only_claims_that_the_watchdog_resets() {
    let world = World::new().await;
    let (_s3, worker) = held_worker(&world, "60s").await;
    worker.signal(Signal::KILL);
    assert_eq!(worker.end().await.code(), -1);
    assert_eq!((world.count(OPEN).await, world.count(CLAIMED).await), (2, 10));
    assert_eq!(world.sweep().await.reset.claims, 0, "only a missing heartbeat proves it");
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.claims, 2);
    assert_eq!((world.count(OPEN).await, world.count(CLAIMED).await), (0, 0));
    world.end_backoff().await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 20);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

/// The server accepts a statement and never answers: it is frozen, or its disk hangs.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_hangs_does_not_keep_a_run_or_a_watchdog_from_stopping() {
    let world = World::new().await;
    for (program, args, url, code) in [
        ("cleanup-worker", &["run"][..], world.worker_url(), 3),
        ("cleanup-watchdog", &[], world.watchdog_url.clone(), 0),
    ] {
        let proxy = Proxy::start(&address_of(&world.database_url)).await;
        proxy.arm(Fault::Swallow("hashtext('watchdog')"));
        let process = world.program(program).args(args).env("DATABASE_URL", &proxy.through(&url));
        let running = process.env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0").start();
        while proxy.fired() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        running.signal(Signal::TERM);
        let ended = tokio::time::timeout(Duration::from_secs(60), running.end()).await;
        assert_eq!(ended.expect("exits on the signal").code(), code, "{program}");
    }
}

/// Runs a program with a shell redirection of its output, and returns its exit code.
async fn with_output(world: &World, program: &str, args: &[&str], redirect: &str) -> i32 {
    let path = match program {
        "cleanup-worker" => env!("CARGO_BIN_EXE_cleanup-worker"),
        "cleanup-watchdog" => env!("CARGO_BIN_EXE_cleanup-watchdog"),
        _ => env!("CARGO_BIN_EXE_cleanupctl"),
    };
    let shell = format!("set -o pipefail; {path} {} {redirect}", args.join(" "));
    let url = if program == "cleanup-watchdog" { &world.watchdog_url } else { &world.worker_url() };
    let run = world.program("bash").args(&["-c", &shell]).env("DATABASE_URL", url);
    run.output().await.code()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_or_report_that_cannot_be_written_does_not_stop_the_work() {
    let world = World::new().await;
    for redirect in ["2>/dev/full", "2>&1 >/dev/null | head -1 >/dev/null", "2>&-"] {
        world.run_sql("DELETE FROM pastes; DELETE FROM content").await;
        world.put_many(50, 50).await;
        let args = ["run", "--batch-size", "10", "--concurrency", "2"];
        let code = with_output(&world, "cleanup-worker", &args, redirect).await;
        assert_eq!(code, 0, "{redirect}");
        assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0, "{redirect}");
        assert_eq!(with_output(&world, "cleanup-watchdog", &["--once"], redirect).await, 0);
    }
    world.put_many(50, 50).await;
    let code = with_output(&world, "cleanup-worker", &["run"], ">/dev/full 2>/dev/null").await;
    assert_eq!(code, 1, "the work is done, but its report is lost");
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
    for args in [&["status"][..], &["status", "--watch", "200ms"], &["config"]] {
        let code = with_output(&world, "cleanupctl", args, "2>/dev/null | true").await;
        assert_eq!(code, 0, "{args:?}: a closed pipe is not a failure");
    }
}
