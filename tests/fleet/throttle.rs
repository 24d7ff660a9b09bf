//! Throttling: a run waits for a rate, a flag file, a lagging standby or S3's SlowDown, logs it,
//! continues by itself, and can be stopped while it waits.

use std::time::Duration;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    postgres::Postgres,
    process::{Ended, Running},
    proxy::{Proxy, address_of},
    servers::Folder,
    *,
};
use tokio::io::AsyncReadExt;

const CLAIMS: &str = "SELECT count(*) FROM deletion_claims";

/// A run with 20 due pastes, in batches of 5, one at a time.
async fn run(world: &World, args: &[&str]) -> Process {
    world.put_many(20, 20).await;
    let run = ["run", "--format", "json", "--batch-size", "5", "--concurrency", "1"];
    world.program("cleanup-worker").args(&run).args(args)
}

/// The path of the flag file, which stops all claims while it exists.
fn flag_in(folder: &Folder) -> String {
    folder.file("stop")
}

/// Counts how often the text was logged.
fn logged(ended: &Ended, text: &str) -> usize {
    ended.stderr().matches(text).count()
}

fn assert_waited_for(ended: &Ended, what: &str) {
    let waited = &ended.json()["waited_ms"];
    assert!(waited[what].as_u64().is_some_and(|ms| ms > 0), "{what}: {waited}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_never_ahead_of_the_rate_by_more_than_one_batch() {
    let world = World::new().await;
    world.put_many(600, 600).await;
    let args = ["run", "--format", "json", "--batch-size", "50", "--max-rate", "200"];
    let ended = world.program("cleanup-worker").args(&args).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(world.count(CLAIMS).await, 12);
    let ahead = "
        SELECT count(*) FROM (
            SELECT rows_claimed, sum(rows_claimed) OVER (ORDER BY id) AS claimed,
                   extract(epoch FROM claimed_at - min(claimed_at) OVER ()) AS elapsed
            FROM deletion_claims) claim
        WHERE claimed > 200 * elapsed + rows_claimed";
    assert_eq!(world.count(ahead).await, 0);
    assert_waited_for(&ended, "max_rate");
    assert_eq!(logged(&ended, "paused claims: max_rate (200 pastes/s)"), 1, "logged once");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_file_stops_claims_but_no_batch_in_flight_until_it_is_removed() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let flag = flag_in(&folder);
    let worker = run(&world, &[]).await.env("AWS_ENDPOINT_URL", &s3.url);
    let mut worker = worker.env("CLEANUP_THROTTLE_FLAG_FILE", &flag).start();
    s3.called(1).await;
    folder.write("stop", "");
    s3.let_go();
    worker.until_it_logs("finished claim").await;
    worker.until_it_logs(&format!("paused claims: flag file {flag} exists")).await;
    assert_eq!(world.count(CLAIMS).await, 1);
    std::fs::remove_file(&flag).expect("remove the flag");
    worker.until_it_logs("resumed claims").await;
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_waited_for(&ended, "flag_file");
    assert_eq!(logged(&ended, "paused claims"), 1, "logged once");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_file_that_cannot_be_checked_stops_claims_too() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    folder.write("file", "");
    let below = format!("{}/stop", folder.file("file"));
    let worker = run(&world, &[]).await.env("CLEANUP_THROTTLE_FLAG_FILE", &below);
    let mut worker = worker.start();
    worker.until_it_logs("stop cannot be checked: Not a directory").await;
    std::fs::remove_file(folder.file("file")).expect("remove the file in its way");
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_nothing_due_does_not_wait_for_a_throttle() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    folder.write("stop", "");
    world.put("live", "a", Never).await;
    let worker = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let ended = worker.env("CLEANUP_THROTTLE_FLAG_FILE", &flag_in(&folder)).start().end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(ended.json()["waited_ms"], serde_json::json!({}));
}

/// Starts a run that waits for a flag file and has claimed nothing.
async fn waiting(world: &World, folder: &Folder, s3: &str, args: &[&str]) -> Running {
    folder.write("stop", "");
    let worker = run(world, args).await.env("CLEANUP_THROTTLE_FLAG_FILE", &flag_in(folder));
    let mut worker = worker.env("AWS_ENDPOINT_URL", s3).start();
    worker.until_it_logs("paused claims: flag file").await;
    worker
}

async fn assert_stopped(world: &World, worker: Running, because: &str) {
    let ended = worker.end().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], because);
    assert_eq!(ended.json()["left"]["due"], 20);
    assert_eq!(world.count(CLAIMS).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_stops_a_run_that_is_throttled() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    let worker = waiting(&world, &folder, &env("S3_ENDPOINT"), &[]).await;
    worker.signal(Signal::TERM);
    assert_stopped(&world, worker, "signal").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_stops_a_run_that_is_throttled() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    let worker = waiting(&world, &folder, &env("S3_ENDPOINT"), &["--run-time", "10s"]).await;
    assert_stopped(&world, worker, "deadline").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pausing_the_fleet_stops_a_run_that_is_throttled() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    let worker = waiting(&world, &folder, &env("S3_ENDPOINT"), &[]).await;
    world.run_sql("UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'test'").await;
    assert_stopped(&world, worker, "paused").await;
}

/// A world on a primary whose standby has paused its replay and reports the lag.
struct Lagging {
    world: World,
    standby: tokio_postgres::Client,
    _servers: (Postgres, Postgres),
}

impl Lagging {
    async fn start() -> Self {
        let primary = Postgres::start(&[]).await;
        let often = "wal_receiver_status_interval = 1s";
        let standby = Postgres::standby(primary.port, "standby", &[often]).await;
        let world = World::on_server(&primary).await;
        let servers = (primary, standby);
        let standby = connect(&servers.1.url("postgres")).await;
        standby.batch_execute("SELECT pg_wal_replay_pause()").await.expect("pause");
        Self { world, standby, _servers: servers }
    }

    async fn worker(&self, args: &[&str]) -> Process {
        let worker = run(&self.world, args).await;
        let lags = "SELECT coalesce(max(replay_lag) > '1s', false) FROM pg_stat_replication";
        self.world.until("the standby lags", lags).await;
        worker.env("CLEANUP_THROTTLE_MAX_REPLICA_LAG", "1s")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lags_stops_claims_until_it_has_caught_up() {
    let pair = Lagging::start().await;
    pair.world.run_sql("GRANT pg_monitor TO suite_worker").await;
    let mut worker = pair.worker(&[]).await.start();
    let line = worker.until_it_logs("paused claims: replica lag").await;
    assert!(line.contains(" s > 1s"), "{line}");
    assert_eq!(pair.world.count(CLAIMS).await, 0);
    pair.standby.batch_execute("SELECT pg_wal_replay_resume()").await.expect("resume");
    worker.until_it_logs("resumed claims").await;
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_waited_for(&ended, "replica_lag");
    assert_eq!(logged(&ended, "pg_monitor"), 0, "it can read the lag");
    pair.world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lag_that_is_read_slowly_stops_claims() {
    let (pair, folder) = (Lagging::start().await, Folder::new("flag"));
    pair.world.run_sql("GRANT pg_monitor TO suite_worker").await;
    let proxy = Proxy::start(&address_of(&pair.world.database_url)).await;
    folder.write("stop", "");
    let worker = pair.worker(&[]).await.env("CLEANUP_THROTTLE_FLAG_FILE", &flag_in(&folder));
    let mut worker = worker.env("DATABASE_URL", &proxy.through(&pair.world.worker_url())).start();
    worker.until_it_logs("paused claims: flag file").await;
    // More than a second for the statements that read the lag.
    proxy.delay(Duration::from_millis(700));
    std::fs::remove_file(flag_in(&folder)).expect("remove the flag");
    worker.until_it_logs("paused claims: replica lag").await;
    assert_eq!(pair.world.count(CLAIMS).await, 0);
    proxy.delay(Duration::ZERO);
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.code(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_cannot_see_the_lag_warns_once_and_drains() {
    let pair = Lagging::start().await;
    // At this rate it checks the lag more than once.
    let ended = pair.worker(&["--max-rate", "4"]).await.start().end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(logged(&ended, "GRANT pg_monitor"), 1, "{}", ended.stderr());
    assert_eq!(ended.json()["waited_ms"].get("replica_lag"), None);
    pair.world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_down_is_logged_and_its_waits_are_in_the_summary() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let mut worker = waiting(&world, &folder, &s3.url, &[]).await;
    s3.set_mode(Mode::Failing { status: 503, code: "SlowDown" });
    std::fs::remove_file(flag_in(&folder)).expect("remove the flag");
    worker.until_it_logs("S3 returned SlowDown").await;
    s3.called(3).await;
    s3.set_mode(Mode::Normal);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(logged(&ended, "S3 returned SlowDown"), 1, "logged once");
    assert_waited_for(&ended, "s3_pace");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_bar_and_the_report_name_the_throttle() {
    let (world, folder) = (World::new().await, Folder::new("flag"));
    folder.write("stop", "");
    world.put_many(20, 20).await;
    let worker = env!("CARGO_BIN_EXE_cleanup-worker");
    // `script` gives it a terminal, and copies the terminal's output to stdout.
    let script = world.program("script").args(&["-qec", &format!("{worker} run"), "/dev/null"]);
    let script = script.env("DATABASE_URL", &world.worker_url()).env("TERM", "xterm");
    let mut script = script.env("CLEANUP_THROTTLE_FLAG_FILE", &flag_in(&folder)).into_command();
    let mut script = script.spawn().expect("script");
    let mut screen = Screen { stdout: script.stdout.take().expect("stdout"), seen: Vec::new() };
    screen.until_it_shows("; waiting for flag file").await;
    std::fs::remove_file(flag_in(&folder)).expect("remove the flag");
    screen.until_it_shows("s for the removal of the flag file (flag_file)").await;
    world.until("it is drained", "SELECT count(*) = 0 FROM pastes").await;
}

struct Screen {
    stdout: tokio::process::ChildStdout,
    seen: Vec<u8>,
}

impl Screen {
    async fn until_it_shows(&mut self, text: &str) {
        let shown = tokio::time::timeout(Duration::from_secs(60), self.shows(text)).await;
        let seen = String::from_utf8_lossy(&self.seen);
        assert!(shown == Ok(true), "{text:?} was never shown, only: {seen}");
    }

    /// Returns false if the output ended without the text.
    async fn shows(&mut self, text: &str) -> bool {
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            if self.stdout.read_buf(&mut self.seen).await.expect("read") == 0 {
                return false;
            }
        }
        true
    }
}
