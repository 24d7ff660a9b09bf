//! The fleet's metrics: exact although workers are killed, counted once however many watchdogs run,
//! and never computed during a scrape.

use std::collections::BTreeMap;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};
use paste_cleanup::{
    config::Settings,
    watchdog::{Watchdog, totals},
};

/// Parses the page: a sample's name with its labels, and its value.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            (name.to_string(), value.parse().expect("a number"))
        })
        .collect()
}

async fn watchdog(world: &World) -> std::sync::Arc<Watchdog> {
    Watchdog::start(std::sync::Arc::new(watchdog_settings(world))).await.expect("a watchdog")
}

fn watchdog_settings(world: &World) -> Settings {
    let mut settings = world.settings.clone();
    settings.postgres.url = Some(world.watchdog_url.clone().into());
    settings
}

/// Returns the samples of a scrape after one more tick.
async fn scrape(watchdog: &Watchdog) -> BTreeMap<String, f64> {
    watchdog.tick().await.expect("a tick");
    watchdog.take_snapshot().await.expect("a snapshot");
    samples(&watchdog.metrics().render())
}

#[tokio::test(flavor = "multi_thread")]
async fn totals_are_exact_although_a_worker_was_killed() {
    let world = World::new().await;
    let mut bytes = 0.0;
    for n in 0..30 {
        let body = format!("body {}", n % 10);
        bytes += if n < 10 { body.len() as f64 } else { 0.0 };
        world.put(&format!("p{n}"), &body, Ago(7200.0 + f64::from(n))).await;
    }
    let worker = |batches: &str| {
        let worker = world.program("cleanup-worker").args(&["run", "--limit", batches]);
        worker.env("CLEANUP_WORKER_BATCH_SIZE", "10").env("CLEANUP_WORKER_CONCURRENCY", "1")
    };
    assert_eq!(worker("10").output().await.code(), 3);
    // The second worker dies after its first batch, ten seconds before it may claim the next.
    let mut dies = worker("20").env("CLEANUP_THROTTLE_MAX_RATE", "1").start();
    dies.until_it_logs("finished claim").await;
    world.until("its run is recorded", "SELECT count(*) = 2 FROM cleanup_runs").await;
    dies.signal(Signal::KILL);
    dies.end().await;
    world.expire_leases(7201.0).await;
    let watchdog = watchdog(&world).await;
    scrape(&watchdog).await;
    world.run_sql("UPDATE pastes SET retry_at = NULL").await;
    assert_eq!(world.program("cleanup-worker").args(&["run"]).output().await.code(), 0);
    let seen = scrape(&watchdog).await;
    for (name, value) in [
        ("cleanup_pastes_deleted_total", 30.0),
        ("cleanup_objects_deleted_total", 10.0),
        ("cleanup_freed_bytes_total", bytes),
        ("cleanup_paste_age_at_deletion_seconds_count", 30.0),
        ("cleanup_paste_age_at_deletion_seconds_bucket{le=\"3600\"}", 0.0),
        ("cleanup_paste_age_at_deletion_seconds_bucket{le=\"10800\"}", 30.0),
        ("cleanup_runs_total{stopped_because=\"limit\"}", 1.0),
        ("cleanup_runs_total{stopped_because=\"drained\"}", 1.0),
        ("cleanup_backlog_pastes", 0.0),
        ("cleanup_open_claims", 0.0),
    ] {
        assert_eq!(seen.get(name), Some(&value), "{name}: {seen:#?}");
    }
    let batches = seen["cleanup_batches_total"];
    for phase in ["claim", "decrement", "delete", "evict", "finish"] {
        let name = format!("cleanup_batch_phase_duration_seconds_count{{phase=\"{phase}\"}}");
        assert_eq!(seen[&name], batches, "{name}");
    }
    assert_eq!(seen["cleanup_lock_hold_seconds_count"], batches);
    assert_eq!(
        world.count("SELECT count(*) FROM cleanup_runs WHERE ended_at IS NULL").await,
        1,
        "the killed run has no end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_watchdogs_count_nothing_twice_and_a_new_one_loses_nothing() {
    let world = World::new().await;
    world.put_many(300, 300).await;
    let worker = world.worker_with(|s| s.worker.batch_size = 10).await;
    drain(&worker).await;
    let pool = world.watchdog_pool();
    let at_once = (0..8).map(|_| totals::count(&pool, &world.settings));
    for counted in futures_util::future::join_all(at_once).await {
        counted.expect("count");
    }
    let first = scrape(&*watchdog(&world).await).await;
    assert_eq!(first["cleanup_pastes_deleted_total"], 300.0);
    assert_eq!(first["cleanup_batches_total"], 30.0);
    assert_eq!(first["cleanup_runs_total{stopped_because=\"drained\"}"], 1.0);
    // Another watchdog, after the retention of the history has passed.
    world
        .run_sql(
            "UPDATE cleanup_runs SET started_at = now() - interval '40 days',
                                     seen_at = now() - interval '40 days';
             UPDATE deletion_claims SET finished_at = now() - interval '40 days'",
        )
        .await;
    let second = scrape(&*watchdog(&world).await).await;
    let history =
        "SELECT (SELECT count(*) FROM deletion_claims) + (SELECT count(*) FROM cleanup_runs)";
    assert_eq!(world.count(history).await, 0, "pruned");
    assert_eq!(second["cleanup_pastes_deleted_total"], 300.0);
    assert_eq!(second["cleanup_runs_total{stopped_because=\"drained\"}"], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_dead_letters_resets_and_drift_are_counted_by_kind() {
    let world = World::new().await;
    for code in ["shared", "well"] {
        world.put(code, code, Ago(60.0)).await;
    }
    // A count that is too low: a live paste still references that content.
    world.put("living", "shared", Never).await;
    world.run_sql("UPDATE content SET ref_count = 1 WHERE ref_count = 2").await;
    let drifted = drain(&world.worker().await).await;
    assert_eq!(drifted.drift_repaired, 1);
    world.put_many(5, 5).await;
    let worker = world.worker().await;
    let expired = claim_some(&worker, 2).await;
    world.expire_leases(7201.0).await;
    world.sweep().await;
    let released = claim_some(&worker, 2).await;
    worker.release(released.fence, "a test").await.expect("release");
    // A row that ran alone and fails for the last time.
    world
        .run_sql("UPDATE pastes SET attempts = 4, retry_at = NULL WHERE expires_at IS NOT NULL")
        .await;
    let alone = claim_some(&worker, 1).await;
    assert_eq!((alone.pastes.len(), expired.pastes.len()), (1, 2));
    world.expire_leases(7201.0).await;
    let seen = scrape(&*watchdog(&world).await).await;
    for (name, value) in [
        ("cleanup_count_drift_total", 1.0),
        ("cleanup_claims_reset_total{reason=\"lease_expired\"}", 2.0),
        ("cleanup_claims_reset_total{reason=\"released\"}", 1.0),
        ("cleanup_pastes_reset_total", 5.0),
        ("cleanup_pastes_dead_lettered_total", 1.0),
        ("cleanup_dead_letter_pastes", 1.0),
    ] {
        assert_eq!(seen.get(name), Some(&value), "{name}: {seen:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_errors_are_counted_by_class_and_throttling_by_reason() {
    let world = World::new().await;
    world.put_many(40, 40).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = world
        .worker_with(|settings| {
            settings.s3.endpoint = Some(s3.url.clone());
            settings.throttle.max_rate = 20;
            settings.worker.batch_size = 20;
        })
        .await;
    s3.set_mode(Mode::Failing { status: 503, code: "SlowDown" });
    let running = tokio::spawn({
        let worker = std::sync::Arc::clone(&worker);
        async move { drain(&worker).await }
    });
    s3.called(2).await;
    s3.set_mode(Mode::Normal);
    running.await.expect("the run");
    let seen = scrape(&*watchdog(&world).await).await;
    assert!(seen["cleanup_s3_errors_total{class=\"throttled\"}"] >= 1.0, "{seen:#?}");
    assert!(seen["cleanup_throttled_seconds_total{reason=\"max_rate\"}"] > 0.0, "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_snapshot_no_fleet_metric_is_exported_as_zero() {
    let world = World::new().await;
    let page = watchdog(&world).await.metrics().render();
    assert!(page.contains("cleanup_build_info"), "{page}");
    assert!(!page.contains("cleanup_pastes_deleted_total"), "{page}");
    assert!(!page.contains("cleanup_backlog_pastes"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_backlog_is_estimated_from_a_sample_and_a_small_one_is_counted() {
    let world = World::new().await;
    world.put_many(2000, 1).await;
    let watchdog = watchdog(&world).await;
    let small = scrape(&watchdog).await;
    assert_eq!(
        (small["cleanup_backlog_pastes"], small["cleanup_backlog_estimated"]),
        (2000.0, 0.0)
    );
    assert!(small["cleanup_oldest_overdue_seconds"] >= 2000.0);
    world
        .run_sql(
            "INSERT INTO pastes (short_code, expires_at)
             SELECT 'many ' || n, now() - interval '1 minute' FROM generate_series(1, 300000) n",
        )
        .await;
    let large = scrape(&watchdog).await;
    assert_eq!(large["cleanup_backlog_estimated"], 1.0);
    let about = large["cleanup_backlog_pastes"] / 302_000.0;
    assert!((0.7..1.3).contains(&about), "{about}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rights_on_the_history_workers_still_drain_and_watchdogs_still_reset() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    claim_some(&*world.worker().await, 10).await;
    world.expire_leases(7201.0).await;
    world
        .run_sql(
            "REVOKE ALL ON cleanup_runs, cleanup_totals FROM cleanup_worker, cleanup_watchdog;
             INSERT INTO deletion_claims (worker, rows_claimed, finished_at, counted)
             VALUES (gen_random_uuid(), 1, now() - interval '40 days', true)",
        )
        .await;
    let ticked = watchdog(&world).await.tick().await.expect("a tick");
    assert_eq!((ticked.swept.reset.claims, ticked.pruned.claims), (1, 1));
    let mut sidecar = world
        .program("cleanup-watchdog")
        .env("CLEANUP_WATCHDOG_TICK", "100ms")
        .env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0")
        .start();
    let said = sidecar.until_it_logs("cannot export fleet metrics").await;
    assert!(said.contains("cleanupctl migrate --roles"), "{said}");
    world.run_sql("UPDATE pastes SET retry_at = NULL").await;
    let ended = world.program("cleanup-worker").args(&["run"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_of_an_older_schema_warns_about_its_roles() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    drain(&world.worker().await).await;
    world
        .run_sql(
            "DROP TABLE cleanup_runs, cleanup_totals, cleanup_audits;
             UPDATE deletion_claims SET ages = NULL;
             DELETE FROM cleanup_migrations WHERE version = 4",
        )
        .await;
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    assert!(
        migrated.stderr().contains("run `cleanupctl migrate --roles`"),
        "{}",
        migrated.stderr()
    );
    let migrated = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert!(!migrated.stderr().contains("warning"), "{}", migrated.stderr());
    let seen = scrape(&*watchdog(&world).await).await;
    assert_eq!(seen["cleanup_pastes_deleted_total"], 10.0, "older claims count, too");
    assert_eq!(
        seen["cleanup_paste_age_at_deletion_seconds_count"], 0.0,
        "older claims have no ages"
    );
}
