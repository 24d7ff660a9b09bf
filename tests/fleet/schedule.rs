//! The resident scheduler: it starts runs, skips ticks that overlap, and stops gracefully.

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    proxy::{Proxy, address_of},
    *,
};
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::{Europe::Berlin, Tz};
use paste_cleanup::worker::schedule::Ticks;

#[tokio::test(flavor = "multi_thread")]
async fn the_schedule_fires_skips_a_tick_that_overlaps_and_fires_again() {
    let world = World::new().await;
    world.put("first", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["schedule"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_SCHEDULE_CRON", "* * * * * *")
        .env("CLEANUP_SCHEDULE_TIMEZONE", "Europe/Berlin")
        .start();
    worker.until_it_logs("next run:").await;
    s3.called(1).await;
    worker.until_it_logs("skipped a scheduled run: the last one is still running").await;
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
async fn a_schedule_that_is_stopped_during_a_run_leaves_nothing_claimed() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
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
async fn a_run_that_released_its_batches_at_the_deadline_does_not_affect_the_next_one() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let mut worker = world
        .program("cleanup-worker")
        .args(&["schedule", "--run-time", "3s"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_SCHEDULE_CRON", "* * * * * *")
        .env("CLEANUP_WORKER_GRACE_PERIOD", "100ms")
        .start();
    worker.until_it_logs("released claim").await;
    s3.let_go();
    world.until("the next run deletes", "SELECT count(*) = 0 FROM pastes").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_during_a_postgres_outage_runs_once_postgres_is_back() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let proxy = Proxy::start(&address_of(&world.database_url)).await;
    let mut ahead = TimeDelta::seconds(8);
    let mut worker = loop {
        // Once a day, so that only the wait for Postgres can recover a missed tick.
        let tick = Utc::now() + ahead;
        let mut worker = world
            .program("cleanup-worker")
            .args(&["schedule"])
            .env("DATABASE_URL", &proxy.through(&world.worker_url()))
            .env("CLEANUP_SCHEDULE_CRON", &tick.format("%-S %-M %-H * * *").to_string())
            .start();
        worker.until_it_logs("next run:").await;
        proxy.down();
        // The tick is at the beginning of its second.
        if Utc::now() + TimeDelta::seconds(1) < tick {
            break worker;
        }
        // The machine is slow, and the tick came before the outage.
        proxy.up();
        worker.signal(Signal::TERM);
        worker.end().await;
        ahead = ahead * 2;
    };
    world.put("b", "b", Ago(60.0)).await;
    worker.until_it_logs("cannot start yet").await;
    proxy.up();
    world.until("the delayed run deletes", "SELECT count(*) = 0 FROM pastes").await;
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.code(), 0);
    world.assert_drained().await;
}

/// Returns the times, in local time between two days, at which this schedule starts a run if it is
/// checked every second.
fn runs(cron: &str, from: &str, to: &str) -> Vec<String> {
    let day = |day: &str| -> DateTime<Utc> { format!("{day}T00:00:00.4Z").parse().expect("a day") };
    let (mut now, end) = (day(from), day(to));
    let mut ticks = Ticks::new(cron, Berlin, now).expect("a schedule");
    let mut runs = Vec::new();
    while now < end {
        now += TimeDelta::seconds(1);
        if ticks.is_due(now) {
            runs.push(now.with_timezone::<Tz>(&Berlin).format("%d %H:%M %Z").to_string());
        }
    }
    runs
}

#[test]
fn a_time_of_day_that_a_clock_change_skips_is_run_once_that_day() {
    let found = runs("0 30 2 * * *", "2027-03-27", "2027-03-30");
    assert_eq!(found, ["27 02:30 CET", "28 03:00 CEST", "29 02:30 CEST"]);
    let found = runs("0 0,15 2,3 * * *", "2027-03-28", "2027-03-29");
    assert_eq!(found, ["28 03:00 CEST", "28 03:15 CEST", "29 02:00 CEST"]);
}

#[test]
fn a_time_of_day_that_occurs_twice_is_run_once_that_day() {
    let found = runs("0 30 2 * * *", "2027-10-30", "2027-11-02");
    assert_eq!(found, ["30 02:30 CEST", "31 02:30 CEST", "01 02:30 CET"]);
    let found = runs("0 15 2,14 * * *", "2027-10-31", "2027-11-01");
    assert_eq!(found, ["31 02:15 CEST", "31 14:15 CET"]);
}

#[test]
fn a_scheduler_that_starts_in_the_repeated_hour_skips_the_tick_that_has_passed() {
    let now: DateTime<Utc> = "2027-10-31T01:10:00Z".parse().expect("02:10 CET");
    let mut ticks = Ticks::new("0 30 2 * * *", Berlin, now).expect("a schedule");
    assert!(!ticks.is_due(now) && !ticks.is_due(now + TimeDelta::hours(2)));
}

#[test]
fn an_hourly_schedule_loses_no_run_when_clocks_change() {
    for (from, to) in [("2027-03-28", "2027-03-29"), ("2027-10-31", "2027-11-01")] {
        assert_eq!(runs("0 30 * * * *", from, to).len(), 24, "{from}");
        assert_eq!(runs("0 */20 * * * *", from, to).len(), 72, "{from}");
    }
}

#[test]
fn a_long_running_scheduler_keeps_local_time_after_clocks_change() {
    let found = runs("0 0 4 1 * *", "2027-02-15", "2027-05-15");
    assert_eq!(found, ["01 04:00 CET", "01 04:00 CEST", "01 04:00 CEST"]);
}
