//! Settings: file, variables, flags and defaults; an invalid setting is refused in one line with exit code
//! 2.

mod secrets;

use std::path::{Path, PathBuf};

use crate::support::*;
use paste_cleanup::config::{Settings, default_toml, defaults, load};

const DEFAULT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default.toml");
const LOCAL_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/local.toml");
/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

/// A settings file in the test run's own folder, removed with it.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let folder =
            std::env::var("PASTE_CLEANUP_TEST_DIR").expect("start the servers with `ops/servers`");
        let path = Path::new(&folder).join(format!("{}.toml", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).expect("write a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A worker with complete settings, whose servers do not exist.
fn worker(args: &[&str]) -> Process {
    Process::new("cleanup-worker")
        .env("DATABASE_URL", &format!("postgres://u@{NOWHERE}/d"))
        .env("REDIS_URL", &format!("redis://{NOWHERE}"))
        .env("S3_BUCKET", "b")
        .env("AWS_ENDPOINT_URL", &format!("http://{NOWHERE}"))
        .args(args)
}

/// All settings as text, without those that the environment of the tests sets.
fn shown(mut settings: Settings) -> String {
    (settings.postgres.url, settings.redis.url) = (None, None);
    (settings.s3.bucket, settings.s3.endpoint) = (None, None);
    format!("{settings:#?}")
}

#[test]
fn the_default_file_is_what_the_code_generates() {
    let file = std::fs::read_to_string(DEFAULT_FILE).expect(DEFAULT_FILE);
    assert!(file == default_toml(), "run `cleanupctl config > config/default.toml`");
}

#[tokio::test]
async fn cleanupctl_config_prints_the_default_file() {
    let printed = Process::new("cleanupctl").args(&["config"]).output().await;
    assert_eq!((printed.code(), printed.stderr().as_str()), (0, ""));
    assert_eq!(printed.stdout(), default_toml());
}

#[test]
fn every_key_of_the_default_file_is_documented_and_names_its_variable() {
    let text = default_toml();
    let (mut section, mut comment, mut keys) = (String::new(), String::new(), 0);
    for line in text.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push_str(text);
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_uppercase();
        } else if let Some((key, _)) = line.strip_prefix('#').and_then(|key| key.split_once(" =")) {
            let variable = format!("`CLEANUP_{section}_{}`", key.to_uppercase());
            let (words, rest) = comment.split_once("Can also be specified").expect("its variable");
            assert!(words.len() > 20 && rest.contains(&variable), "{section} {key}: {comment}");
            keys += 1;
        }
        if line != "#" {
            comment.clear();
        }
    }
    assert_eq!(keys, text.matches("Can also be specified").count());
}

#[test]
fn the_default_file_with_every_key_uncommented_is_the_defaults() {
    let mut uncommented = 0;
    let mut uncomment = |line: &str| match line.strip_prefix('#') {
        // Keys without a default have no value to uncomment.
        Some(key) if !key.starts_with(' ') && key.contains(" = ") => {
            uncommented += 1;
            format!("{key}\n")
        }
        _ => format!("{line}\n"),
    };
    let text: String = default_toml().lines().map(&mut uncomment).collect();
    assert_eq!(uncommented, text.matches("# Default value: ").count());
    let file = File::new(&text);
    let loaded = load(Some(&file.0)).expect("every default is valid in a file");
    assert_eq!(shown(loaded), shown(defaults()));
}

#[test]
fn the_default_file_as_it_is_changes_nothing() {
    let loaded = load(Some(Path::new(DEFAULT_FILE))).expect("load");
    assert_eq!(shown(loaded), shown(defaults()));
}

#[test]
fn the_example_for_the_local_servers_loads_and_is_complete() {
    let local = load(Some(Path::new(LOCAL_FILE))).expect("load");
    let own = [local.postgres_url().is_ok(), local.redis_url().is_ok(), local.bucket().is_ok()];
    assert_eq!(own, [true; 3]);
    assert_eq!(local.watchdog.stuck_after.as_secs(), 60);
    assert_eq!(local.cache.key_pattern, "paste:{short_code}");
}

/// Asserts exit code 2 and one line with these words.
async fn assert_usage(process: Process, words: &[&str]) {
    let ended = process.output().await;
    ended.assert_refused(2, words);
    assert_eq!(ended.stdout(), "");
}

#[tokio::test]
async fn an_unknown_flag_is_refused_by_every_program() {
    for (program, args) in [
        ("cleanup-worker", &["run", "--batchsize", "5"][..]),
        ("cleanup-watchdog", &["--onec"]),
        ("cleanupctl", &["migrate", "--force"]),
    ] {
        let ended = Process::new(program).args(args).output().await;
        assert_eq!(ended.code(), 2, "{}", ended.stderr());
        let first = ended.stderr().lines().next().unwrap_or_default().to_string();
        assert!(first.contains(args[args.len() - 1]) || first.contains(args[1]), "{first}");
    }
}

#[tokio::test]
async fn an_unknown_key_in_the_file_is_refused_by_name() {
    for (text, key) in [
        ("[worker]\nbatchsize = 5", "`worker.batchsize`"),
        ("[wroker]\nbatch_size = 5", "`wroker`"),
        ("batch_size = 5", "`batch_size`"),
    ] {
        let file = File::new(text);
        let run = worker(&["run", "--config", file.path()]);
        assert_usage(run, &["unknown key", key, file.path()]).await;
    }
}

#[tokio::test]
async fn an_unknown_variable_is_refused_by_name() {
    let run = worker(&["run"]).env("CLEANUP_WORKER_BATCHSIZE", "5");
    assert_usage(run, &["unknown variable", "CLEANUP_WORKER_BATCHSIZE"]).await;
}

#[tokio::test]
async fn a_file_that_does_not_exist_is_refused_by_name() {
    let run = worker(&["run", "--config", "/nowhere/cleanup.toml"]);
    assert_usage(run, &["/nowhere/cleanup.toml"]).await;
    let run = worker(&["run"]).env("CLEANUP_CONFIG", "/nowhere/cleanup.toml");
    assert_usage(run, &["/nowhere/cleanup.toml"]).await;
}

#[tokio::test]
async fn a_bad_duration_is_refused_from_every_source() {
    let run = worker(&["run"]).env("CLEANUP_WATCHDOG_STUCK_AFTER", "soon");
    assert_usage(run, &["CLEANUP_WATCHDOG_STUCK_AFTER", "soon", "not a duration"]).await;
    let file = File::new("[lock]\nttl = \"30 parsecs\"");
    let run = worker(&["run", "--config", file.path()]);
    assert_usage(run, &[file.path(), "line 2", "30 parsecs", "not a duration"]).await;
    let ended = worker(&["run", "--run-time", "4 o'clock"]).output().await;
    assert_eq!(ended.code(), 2);
    assert!(ended.stderr().contains("--run-time"), "{}", ended.stderr());
}

#[tokio::test]
async fn a_duration_of_more_than_a_hundred_years_is_refused_from_every_source() {
    for variable in ["CLEANUP_S3_DEADLINE", "CLEANUP_WORKER_GRACE_PERIOD", "CLEANUP_WATCHDOG_TICK"]
    {
        let run = worker(&["run"]).env(variable, "101y");
        assert_usage(run, &[variable, "101y", "longer than a hundred years"]).await;
    }
    let run = worker(&["run"]).env("CLEANUP_LOCK_TTL", "61m");
    assert_usage(run, &["lock.ttl is 1h 1m", "3s to 1h"]).await;
    let ended = worker(&["run", "--run-time", "500000000000y"]).output().await;
    assert_eq!(ended.code(), 2, "{}", ended.stderr());
    assert!(ended.stderr().contains("--run-time"), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_and_watchdog_work_with_the_longest_durations() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    for (program, args) in
        [("cleanup-worker", &["run", "--run-time", "100y"][..]), ("cleanup-watchdog", &["--once"])]
    {
        let mut process = world.program(program).args(args).env("CLEANUP_LOCK_TTL", "1h");
        for (variable, longest) in [
            ("CLEANUP_S3_DEADLINE", "100y"),
            ("CLEANUP_WORKER_HEARTBEAT_INTERVAL", "33y"),
            ("CLEANUP_WORKER_GRACE_PERIOD", "100y"),
            ("CLEANUP_WORKER_BACKOFF_CAP", "100y"),
            ("CLEANUP_WATCHDOG_STUCK_AFTER", "100y"),
            ("CLEANUP_WATCHDOG_TICK", "100y"),
            ("CLEANUP_RETENTION_TOMBSTONES", "100y"),
            ("CLEANUP_RETENTION_HISTORY", "100y"),
        ] {
            process = process.env(variable, longest);
        }
        let ended = process.output().await;
        assert_eq!(ended.code(), 0, "{program}: {}", ended.stderr());
    }
    let tombstones = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETED'";
    assert_eq!(world.count(tombstones).await, 1);
}

#[tokio::test]
async fn a_cron_expression_that_matches_no_date_is_refused() {
    let schedule = worker(&["schedule"]).env("CLEANUP_SCHEDULE_CRON", "0 0 0 31 2 *");
    assert_usage(schedule, &["schedule.cron", "\"0 0 0 31 2 *\"", "matches no date"]).await;
}

#[tokio::test]
async fn a_bad_cron_expression_is_refused() {
    for cron in ["whenever", "0 0 25 * * *", "0 0 0 * * * *", ""] {
        let schedule = worker(&["schedule"]).env("CLEANUP_SCHEDULE_CRON", cron);
        assert_usage(schedule, &["schedule.cron", "six fields are needed"]).await;
    }
}

#[tokio::test]
async fn a_cron_expression_of_five_fields_is_refused_rather_than_guessed() {
    let schedule = worker(&["schedule"]).env("CLEANUP_SCHEDULE_CRON", "0 3 * * *");
    assert_usage(schedule, &["\"0 3 * * *\"", "six fields are needed", "second minute hour"]).await;
}

#[tokio::test]
async fn a_bad_time_zone_is_refused() {
    let schedule = worker(&["schedule"]).env("CLEANUP_SCHEDULE_TIMEZONE", "Mars/Olympus");
    assert_usage(schedule, &["CLEANUP_SCHEDULE_TIMEZONE"]).await;
}

#[tokio::test]
async fn a_stuck_after_under_three_heartbeats_is_refused_by_worker_and_watchdog() {
    let words = ["stuck_after", "29s", "three heartbeat intervals", "30s"];
    let run = worker(&["run"]).env("CLEANUP_WATCHDOG_STUCK_AFTER", "29s");
    assert_usage(run, &words).await;
    let watchdog = Process::new("cleanup-watchdog").args(&["--once"]);
    let watchdog = watchdog.env("CLEANUP_WATCHDOG_STUCK_AFTER", "29s");
    assert_usage(watchdog.env("DATABASE_URL", "postgres://u@127.0.0.1:1/d"), &words).await;
    let least = worker(&["run"]).env("CLEANUP_WATCHDOG_STUCK_AFTER", "30s");
    assert_eq!(least.output().await.code(), 1, "three heartbeats are enough: it tries to connect");
}

#[tokio::test]
async fn a_missing_setting_is_named_with_both_of_its_variables() {
    for (well_known, variable) in [
        ("DATABASE_URL", "CLEANUP_POSTGRES_URL"),
        ("REDIS_URL", "CLEANUP_REDIS_URL"),
        ("S3_BUCKET", "CLEANUP_S3_BUCKET"),
    ] {
        for absent in [worker(&["run"]).without(well_known), worker(&["run"]).env(well_known, "")] {
            assert_usage(absent, &[well_known, variable, "--config"]).await;
        }
    }
    for args in [&["migrate"][..], &["status"]] {
        assert_usage(Process::new("cleanupctl").args(args), &["DATABASE_URL"]).await;
    }
    assert_usage(Process::new("cleanup-watchdog").args(&["--once"]), &["DATABASE_URL"]).await;
}

#[tokio::test]
async fn a_cache_key_without_the_short_code_is_refused() {
    let run = worker(&["run"]).env("CLEANUP_CACHE_KEY_PATTERN", "paste");
    assert_usage(run, &["cache.key_pattern", "\"paste\"", "{short_code}"]).await;
}

#[tokio::test]
async fn an_endpoint_without_scheme_or_host_is_refused_by_every_program() {
    for endpoint in ["localhost:9000", "127.0.0.1:9000", "minio", "ftp://minio", "http://"] {
        let words = ["s3.endpoint", endpoint, "AWS_ENDPOINT_URL", "CLEANUP_S3_ENDPOINT", "http://"];
        assert_usage(worker(&["run"]).env("AWS_ENDPOINT_URL", endpoint), &words).await;
        assert_usage(worker(&["run"]).env("CLEANUP_S3_ENDPOINT", endpoint), &words).await;
        let seed = Process::new("cleanupctl").args(&["seed"]).env("AWS_ENDPOINT_URL", endpoint);
        assert_usage(seed, &words).await;
    }
}

#[tokio::test]
async fn numbers_out_of_range_are_refused() {
    for (variable, value, words) in [
        ("CLEANUP_WORKER_BATCH_SIZE", "0", "worker.batch_size"),
        ("CLEANUP_WORKER_BATCH_SIZE", "many", "CLEANUP_WORKER_BATCH_SIZE"),
        ("CLEANUP_WORKER_CONCURRENCY", "65", "worker.concurrency"),
        ("CLEANUP_POSTGRES_POOL_SIZE", "1", "postgres.pool_size"),
        ("CLEANUP_LOCK_TTL", "2s", "lock.ttl"),
        ("CLEANUP_THROTTLE_MAX_RATE", "-1", "CLEANUP_THROTTLE_MAX_RATE"),
        ("CLEANUP_THROTTLE_MAX_REPLICA_LAG", "99ms", "throttle.max_replica_lag"),
        ("CLEANUP_THROTTLE_MAX_REPLICA_LAG", "soon", "CLEANUP_THROTTLE_MAX_REPLICA_LAG"),
        ("CLEANUP_THROTTLE_FLAG_FILE", "stop", "throttle.flag_file"),
        ("CLEANUP_LOG_FILTER", "info,=nonsense=", "log.filter"),
        ("CLEANUP_LOCK_WHEN_UNAVAILABLE", "panic", "CLEANUP_LOCK_WHEN_UNAVAILABLE"),
        ("CLEANUP_WATCHDOG_LISTEN", "here", "CLEANUP_WATCHDOG_LISTEN"),
    ] {
        assert_usage(worker(&["run"]).env(variable, value), &[words]).await;
    }
    assert_usage(worker(&["run", "--batch-size", "0"]), &["worker.batch_size"]).await;
}

#[tokio::test]
async fn a_bad_time_of_day_is_refused() {
    for time in ["6 am", "25:00", "06:00:00:00", ""] {
        let ended = worker(&["run", "--until", time]).output().await;
        assert_eq!(ended.code(), 2, "{time:?}: {}", ended.stderr());
        assert!(ended.stderr().contains("--until"), "{}", ended.stderr());
    }
}

/// The database that the worker tried to reach, from its error.
async fn database_tried(process: Process) -> String {
    let ended = process.output().await;
    ended.assert_refused(1, &[NOWHERE]);
    let (_, rest) = ended.stderr().split_once("database \"").map(own).expect("a database");
    rest.split('"').next().expect("its name").to_string()
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_string(), b.to_string())
}

#[tokio::test]
async fn a_cleanup_variable_beats_the_well_known_one_which_beats_the_file() {
    let url = |database: &str| format!("postgres://u@{NOWHERE}/{database}");
    let file = File::new(&format!("[postgres]\nurl = \"{}\"", url("file")));
    let args = ["run", "--config", file.path()];
    let all = worker(&args)
        .env("DATABASE_URL", &url("well-known"))
        .env("CLEANUP_POSTGRES_URL", &url("cleanup"));
    assert_eq!(database_tried(all).await, "cleanup");
    let two = worker(&args).env("DATABASE_URL", &url("well-known"));
    assert_eq!(database_tried(two).await, "well-known");
    assert_eq!(database_tried(worker(&args).without("DATABASE_URL")).await, "file");
    let named = worker(&["run"]).without("DATABASE_URL").env("CLEANUP_CONFIG", file.path());
    assert_eq!(database_tried(named).await, "file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_beats_the_variable_which_beats_the_file_which_beats_the_default() {
    let world = World::new().await;
    let file = File::new("[worker]\nbatch_size = 4\nconcurrency = 1");
    let flag = ["run", "--format", "json", "--config", file.path(), "--batch-size", "12"];
    let (variable, from_file, default) = (&flag[..5], &flag[..5], &flag[..3]);
    for (args, in_variable, batches) in
        [(&flag[..], "6", 1), (variable, "6", 2), (from_file, "", 3), (default, "", 1)]
    {
        world.put_many(12, 12).await;
        let mut run = world.program("cleanup-worker").args(args);
        if !in_variable.is_empty() {
            run = run.env("CLEANUP_WORKER_BATCH_SIZE", in_variable);
        }
        let ended = run.output().await;
        assert_eq!(ended.json()["batches"], batches, "{args:?} {in_variable}");
    }
}
