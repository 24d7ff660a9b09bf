//! Durations, cron expressions, time zones and times of day: invalid ones are refused, and the
//! longest durations work.

use super::{File, assert_usage, worker};
use crate::support::*;

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
async fn a_bad_time_of_day_is_refused() {
    for time in ["6 am", "25:00", "06:00:00:00", ""] {
        let ended = worker(&["run", "--until", time]).output().await;
        assert_eq!(ended.code(), 2, "{time:?}: {}", ended.stderr());
        assert!(ended.stderr().contains("--until"), "{}", ended.stderr());
    }
}
