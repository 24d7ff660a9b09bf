//! After a night with every kind of event, every panel shows data, and exactly the alerts with a
//! reason are active.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{dashboard, groups};
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::Running,
    prometheus::{JOB, Prometheus, get, promtool, selectors},
    *,
};

#[test]
fn selectors_are_found_in_queries() {
    let query = r#"max by (job) (rate(a_total{x="1"}[5m])) / on (job) group_left () b > 6 * 3600
                   unless job:c:newest{y=~"2|3"} or absent(up) and on (job) time() > 0.5"#;
    let found: Vec<String> = selectors(query).into_iter().collect();
    assert_eq!(found, [r#"a_total{x="1"}"#, "b", r#"job:c:newest{y=~"2|3"}"#, "up"]);
}

/// Returns the queries of the dashboard as Grafana would send them, with the panel's title.
fn dashboard_queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in groups(&dashboard()).into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query").replace("$job", JOB);
            assert!(!query.contains('$'), "an unknown variable: {query}");
            queries.push((panel["title"].as_str().expect("a title").to_string(), query));
        }
    }
    queries
}

/// Starts a resident watchdog, and returns its HTTP address.
async fn watchdog(world: &World) -> (Running, String) {
    let program = world.program("cleanup-watchdog").env("CLEANUP_WATCHDOG_TICK", "200ms");
    let mut running = program.env("CLEANUP_WATCHDOG_LISTEN", "127.0.0.1:0").start();
    let line = running.until_it_logs("health and metrics on").await;
    let address = line.split("http://").nth(1).expect("an address");
    let address = address.split(['"', ' ']).next().expect("an address").to_string();
    (running, address)
}

/// Produces every kind of event: pastes are deleted, Redis and S3 are unavailable, a worker is
/// killed, a count is wrong, a paste cannot be deleted.
async fn bad_night(world: &World) {
    let s3 = FaultyS3::start(world, Mode::Normal).await;
    drain_without_redis(world, &s3).await;
    kill_a_worker(world, &s3).await;
    fail_an_object(world, &s3).await;
    world
        .run_sql(
            "INSERT INTO cleanup_audits
                 (complete, objects, orphans, missing_objects, wrong_counts, findings_left)
             VALUES (true, 20, 2, 0, 0, 2)",
        )
        .await;
}

fn worker(world: &World, s3: &FaultyS3) -> Process {
    let worker = world.program("cleanup-worker").args(&["run"]);
    worker.env("AWS_ENDPOINT_URL", &s3.url).env("CLEANUP_CACHE_KEY_PATTERN", "{short_code}")
}

/// Redis is unavailable, and a count is too low: a live paste still references that content.
async fn drain_without_redis(world: &World, s3: &FaultyS3) {
    for n in 0..12 {
        world.put(&format!("p{n}"), &format!("body {n}"), Ago(7200.0)).await;
    }
    world.put("shared", "shared", Ago(60.0)).await;
    world.put("living", "shared", Never).await;
    world.run_sql("UPDATE content SET ref_count = 1 WHERE ref_count = 2").await;
    let closed = format!("redis://127.0.0.1:{}", servers::free_port());
    let drained = worker(world, s3).env("REDIS_URL", &closed).output().await;
    assert_eq!(drained.code(), 0, "{}", drained.stderr());
}

/// A worker is killed with an open batch, and the watchdog resets its claim.
async fn kill_a_worker(world: &World, s3: &FaultyS3) {
    for n in 0..3 {
        world.put(&format!("q{n}"), &format!("another {n}"), Ago(60.0)).await;
    }
    s3.set_mode(Mode::Holding);
    let calls = s3.calls();
    let dies = worker(world, s3).start();
    s3.called(calls + 1).await;
    dies.signal(Signal::KILL);
    dies.end().await;
    s3.let_go();
    world.expire_leases(7201.0).await;
    let reset =
        "SELECT bool_and(reset_at IS NOT NULL) FROM deletion_claims WHERE finished_at IS NULL";
    world.until("the watchdog resets it", reset).await;
}

/// S3 throttles, fails, and then refuses one object for the last time.
async fn fail_an_object(world: &World, s3: &FaultyS3) {
    let locked = world.put("locked", "locked", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 4 WHERE short_code = 'locked'").await;
    let folder = servers::Folder::new("night");
    folder.write("flag", "");
    let calls = s3.calls();
    let fails = worker(world, s3).env("CLEANUP_THROTTLE_FLAG_FILE", &folder.file("flag"));
    let mut fails = fails.start();
    fails.until_it_logs("paused claims").await;
    s3.set_mode(Mode::Failing { status: 503, code: "SlowDown" });
    std::fs::remove_file(folder.file("flag")).expect("remove the flag");
    s3.called(calls + 1).await;
    s3.set_mode(Mode::Failing { status: 500, code: "InternalError" });
    s3.called(calls + 2).await;
    s3.set_mode(Mode::Refusing { text: locked, code: "ObjectLocked" });
    let failed = fails.end().await;
    assert_eq!(failed.code(), 1, "{}", failed.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_and_every_alert_has_data_after_a_bad_night() {
    let world = World::new().await;
    let (_running, address) = watchdog(&world).await;
    let prometheus = Prometheus::start(Some(&address)).await;
    // Counters were scraped at zero, so that what follows is an increase.
    prometheus.until("cleanup_pastes_deleted_total == 0").await;
    bad_night(&world).await;
    for seen in [
        "cleanup_pastes_deleted_total == 16",
        "cleanup_runs_total{stopped_because=\"failed\"} == 1",
        "cleanup_claims_reset_total{reason=\"lease_expired\"} >= 1",
        "cleanup_s3_errors_total{class=\"throttled\"} >= 1",
        "cleanup_s3_errors_total{class=\"unavailable\"} >= 1",
        "cleanup_claims_without_lock_total >= 1",
        "cleanup_dead_letter_pastes == 1",
        "cleanup_last_audit_findings == 2",
        "job:cleanup_dead_letter_pastes:newest == 1",
    ] {
        prometheus.until(seen).await;
    }

    for (panel, query) in dashboard_queries() {
        let series = prometheus.query(&query).await;
        let number = |series: &Value| series["value"][1].as_str().expect("a value") != "NaN";
        assert!(series.iter().any(number), "{panel} shows nothing: {query}: {series:?}");
    }
    assert_alerts(&prometheus).await;
    let page = get(&address, "/metrics").await;
    assert_queries_use_exported_names(&prometheus, &page).await;
    promtool(&["check", "metrics"], &page).await;
}

/// Asserts that alerts without a waiting time fire, the others are pending, and none is active
/// without a reason.
async fn assert_alerts(prometheus: &Prometheus) {
    for (alert, state) in [
        ("CleanupRunsFailing", "firing"),
        ("CleanupCountDrift", "firing"),
        ("CleanupCacheEvictionFailures", "firing"),
        ("CleanupDeadLetters", "pending"),
        ("CleanupAuditFindings", "pending"),
        ("CleanupClaimsWithoutLock", "pending"),
    ] {
        prometheus.until(&format!("ALERTS{{alertname='{alert}', alertstate='{state}'}}")).await;
    }
    let active = prometheus.query("ALERTS").await;
    for alert in ["CleanupWatchdogDown", "CleanupSnapshotStale", "CleanupOverdue", "CleanupBrake"] {
        assert!(!active.iter().any(|seen| seen["metric"]["alertname"] == alert), "{active:#?}");
    }
    for rule in prometheus.rules().await {
        prometheus.query(rule["query"].as_str().expect("a query")).await;
        assert_eq!(rule["health"], "ok", "{rule:#}");
    }
}

/// Asserts that every query uses names and labels that are exported: others never return anything.
async fn assert_queries_use_exported_names(prometheus: &Prometheus, page: &str) {
    let exported: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let family = |selector: &str| {
        let name = selector.split('{').next().expect("a name").to_string();
        let parts = ["_bucket", "_sum", "_count"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part));
        whole
            .filter(|whole| exported.get(whole) == Some(&"histogram"))
            .map_or(name.clone(), Into::into)
    };
    let rules = prometheus.rules().await;
    let recorded: BTreeSet<&str> = rules
        .iter()
        .filter(|rule| rule["type"] == "recording")
        .map(|rule| rule["name"].as_str().expect("a name"))
        .collect();
    let of_rules = rules.iter().map(|rule| rule["query"].as_str().expect("a query").to_string());
    let of_panels = dashboard_queries().into_iter().map(|(_, query)| query);
    let mut used = BTreeSet::new();
    for query in of_rules.chain(of_panels) {
        let adds = ["sum(", "sum ", "avg(", "avg "].iter().any(|sum| query.contains(sum));
        assert!(!adds, "several watchdogs export the same series: use max: {query}");
        for selector in selectors(&query) {
            let name = family(&selector);
            let known = exported.contains_key(&*name) || recorded.contains(&*name) || name == "up";
            assert!(known, "{selector} is not exported: {query}");
            let found = prometheus.query(&selector).await;
            assert!(!found.is_empty(), "no series for {selector}: {query}");
            used.insert(name);
        }
    }
    for name in exported.keys() {
        assert!(used.contains(*name), "{name} is in no panel and no alert");
    }
    for name in recorded {
        assert!(used.contains(name), "{name} is recorded and not used");
    }
}
