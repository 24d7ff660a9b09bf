//! Times in the far future, from a server clock that was once ahead: they hide no paste and no claim
//! forever, make no count wrong, and `cleanupctl doctor` reports them.

use std::sync::Arc;

use paste_cleanup::watchdog::Watchdog;

use super::*;
use crate::support::{findings::diagnose, *};

/// Times that a wrong clock or a mistake writes.
const FUTURE: [&str; 2] = ["now() + interval '10 years'", "'infinity'"];
const IN_PROGRESS: &str =
    "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_a_heartbeat_in_the_future_is_reset_after_a_full_lease() {
    for future in FUTURE {
        let world = World::new().await;
        world.put_many(5, 5).await;
        let worker = world.worker().await;
        claim_some(&worker, 5).await;
        world.run_sql(&format!("UPDATE deletion_claims SET heartbeat_at = {future}")).await;
        assert_eq!(world.sweep().await.reset.claims, 0, "it may be alive");
        let counts = "SELECT count(*) FROM deletion_claims WHERE heartbeat_at <= now()
                      AND heartbeat_at > now() - interval '1 hour' AND reset_at IS NULL";
        assert_eq!(world.count(counts).await, 1, "its lease starts at the sweep");
        world.expire_leases(7201.0).await;
        assert_eq!(world.sweep().await.reset.rows, 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_a_few_seconds_ahead_is_left_unchanged() {
    let world = World::new().await;
    world.put_many(5, 5).await;
    let worker = world.worker().await;
    claim_some(&worker, 5).await;
    world.run_sql("UPDATE deletion_claims SET heartbeat_at = now() + interval '45 seconds'").await;
    let before = world.text("SELECT heartbeat_at::text FROM deletion_claims").await;
    world.sweep().await;
    assert_eq!(world.text("SELECT heartbeat_at::text FROM deletion_claims").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_progress_since_the_future_are_reset_after_stuck_after() {
    for future in FUTURE {
        let world = World::new().await;
        world.put_many(20, 20).await;
        let marked = format!(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', deletion_initiated_at = {future}"
        );
        world.run_sql(&marked).await;
        assert_eq!(
            world.sweep().await.stranded,
            0,
            "the client that marked them may still be running"
        );
        let counts = "SELECT count(*) FROM pastes WHERE deletion_initiated_at <= now()
                      AND deletion_initiated_at > now() - interval '1 hour'";
        assert_eq!(world.count(counts).await, 20);
        world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'").await;
        assert_eq!((world.sweep().await.stranded, world.count(IN_PROGRESS).await), (20, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_missing_claim_with_a_time_in_the_future_are_reset() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world.run_sql("DELETE FROM deletion_claims").await;
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() + interval '1 year'").await;
    assert_eq!((world.sweep().await.stranded, world.count(IN_PROGRESS).await), (10, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backoff_of_years_is_shortened_and_no_other_backoff_is_changed() {
    let world = World::new().await;
    world.put_many(6000, 6000).await;
    let ahead = "UPDATE pastes SET attempts = 1, last_error = 'S3', retry_at = CASE short_code
                     WHEN 'p00000001' THEN now() + interval '15 minutes'
                     WHEN 'p00000002' THEN 'infinity'
                     ELSE now() + interval '10 years' END";
    world.run_sql(ahead).await;
    let others = "SELECT string_agg(retry_at::text, ' ' ORDER BY short_code) FROM pastes
                  WHERE short_code IN ('p00000001', 'p00000002')";
    let before = world.text(others).await;
    world.sweep().await;
    let hidden = "SELECT count(*) FROM pastes
                  WHERE retry_at > now() + interval '16 minutes' AND retry_at < 'infinity'";
    assert_eq!(world.count(hidden).await, 0, "one sweep corrects all of them");
    assert_eq!(world.text(others).await, before);
    assert_eq!(world.count(ATTEMPTS).await, 6000, "without another attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_paste_with_a_time_in_the_future_is_reset() {
    let world = World::new().await;
    world.put("deferred", "a", Ago(60.0)).await;
    let deferred = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                        deletion_initiated_at = now() + interval '10 years',
                        retry_at = now() + interval '10 years 1 minute',
                        last_error = 'waits for its content row'";
    world.run_sql(deferred).await;
    world.sweep().await;
    let waits = "SELECT count(*) FROM pastes WHERE deletion_initiated_at <= now()
                 AND retry_at < now() + interval '16 minutes' AND retry_at > deletion_initiated_at";
    assert_eq!(world.count(waits).await, 1);
    world.end_deferral().await;
    assert_eq!((world.sweep().await.stranded, world.count(ATTEMPTS).await), (1, 0));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_from_the_future_is_not_kept_forever() {
    let world = World::new().await;
    world.put_many(5, 5).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETED', content_hash = NULL,
                               deletion_initiated_at = now() + interval '10 years'",
        )
        .await;
    world.sweep().await;
    let counts = "SELECT count(*) FROM pastes WHERE deletion_initiated_at <= now()";
    assert_eq!(world.count(counts).await, 5, "its retention starts at the sweep");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclaimable_paste_is_not_hidden_by_a_time_in_the_future() {
    for ahead in ["now() + interval '10 years'", "'infinity'"] {
        let world = World::new().await;
        world.put_many(3, 3).await;
        world
            .run_sql(&format!(
                "INSERT INTO cleanup_unclaimable (short_code, error, found_at, retry_at) VALUES
                     ('p00000001', 'refused', now(), {ahead}),
                     ('p00000002', 'refused', now() + interval '3 days', now() + interval '4 days'),
                     ('p00000003', 'refused', now() - interval '1 day', now() + interval '29 days')"
            ))
            .await;
        let found = diagnose(world.program("cleanupctl")).await;
        found.assert_says("times", "warning", &["2 unclaimable pastes", "the next run"]);
        assert_deleted(&run(&world).await, 2);
        diagnose(world.program("cleanupctl")).await.assert_says("times", "ok", &["no time"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_from_the_future_do_not_hide_that_no_run_has_started() {
    let world = World::new().await;
    world.put("overdue", "a", Ago(30.0 * 3600.0)).await;
    world
        .run_sql(
            "INSERT INTO cleanup_runs (worker, host, started_at, seen_at, ended_at, stopped_because)
             SELECT gen_random_uuid(), 'ahead', now() + interval '1 year', now() + interval '1 year',
                    now() + interval '1 year', 'drained' FROM generate_series(1, 5);
             INSERT INTO cleanup_runs (worker, host, started_at, seen_at)
             VALUES (gen_random_uuid(), 'killed', now() - interval '2 days', now() + interval '1 year')",
        )
        .await;
    let status = world.program("cleanupctl").args(&["status", "--format", "json"]).output().await;
    let status = status.json();
    let todo = status["todo"].to_string();
    assert!(todo.contains("no run has started for more than a day"), "{todo}");
    assert_eq!(status["last_success_s"], serde_json::Value::Null);
    let runs = status["runs"].as_array().expect("runs");
    assert_eq!((runs.len(), &runs[0]["host"]), (1, &"killed".into()), "{runs:?}");
    assert_eq!(runs[0]["state"], "dead");
}

const AHEAD: &str = "UPDATE content SET created_at = now() + interval '10 years'";
const CREATED_LATER: &str = "SELECT count(*) FROM content WHERE created_at > now()";

#[tokio::test(flavor = "multi_thread")]
async fn content_created_in_the_future_is_recounted_once_and_not_at_every_decrement() {
    let world = World::new().await;
    world.put("expired", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    world.put("last", "alone", Ago(60.0)).await;
    world.run_sql(AHEAD).await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.rows_deleted, summary.drift_repaired), (2, 0));
    assert_eq!(world.count(CREATED_LATER).await, 0, "its time was corrected with its count");
    assert_eq!(world.read("live").await.as_deref(), Some("shared"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_stored_again_while_the_clock_was_ahead_keeps_its_correct_count() {
    let world = World::new().await;
    world.put("one", "shared", Ago(60.0)).await;
    world.put("two", "shared", Ago(50.0)).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let (first, second) = (world.worker().await, world.worker().await);
    let (one, two) = (claim_some(&first, 1).await, claim_some(&second, 1).await);
    carry_out(&second, &two).await;
    world.put("new", "shared", Never).await;
    world.put("newer", "shared", Never).await;
    world.run_sql(AHEAD).await;
    carry_out(&first, &one).await;
    assert_eq!(world.count(WRONG_COUNTS).await, 0);
    assert_eq!(world.count(CREATED_LATER).await, 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_in_the_future_are_a_finding_until_a_sweep_has_corrected_them() {
    let world = World::new().await;
    world.put_many(12, 12).await;
    let worker = world.worker().await;
    claim_some(&worker, 2).await;
    world
        .run_sql(
            "UPDATE deletion_claims SET heartbeat_at = 'infinity';
             UPDATE pastes SET retry_at = now() + interval '1 year'
             WHERE short_code IN ('p00000010', 'p00000011', 'p00000012');
             UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() + interval '1 year'
             WHERE short_code = 'p00000009'",
        )
        .await;
    world.run_sql(AHEAD).await;
    let found = diagnose(world.program("cleanupctl")).await;
    let words = [
        "1 claim (",
        "1 claimed row (",
        "3 retry times",
        "12 sampled content rows",
        "cleanup-watchdog --once",
    ];
    found.assert_says("times", "warning", &words);
    world.sweep().await;
    world.run_sql("UPDATE content SET created_at = now()").await;
    diagnose(world.program("cleanupctl")).await.assert_says("times", "ok", &["no time"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_that_expired_at_minus_infinity_are_shown_and_erased() {
    let world = World::new().await;
    world.put("ever", "a", Ago(60.0)).await;
    world.put("since", "b", Ago(60.0)).await;
    world.put("never", "c", In(60.0)).await;
    world
        .run_sql(
            "UPDATE pastes SET expires_at = '-infinity' WHERE short_code = 'ever';
             UPDATE pastes SET expires_at = 'infinity' WHERE short_code = 'never'",
        )
        .await;
    let mut settings = world.settings.clone();
    settings.postgres.url = Some(secrecy::SecretString::from(world.watchdog_url.clone()));
    let watchdog = Watchdog::start(Arc::new(settings)).await.expect("watchdog");
    watchdog.tick().await.expect("a tick");
    watchdog.take_snapshot().await.expect("a snapshot, which /readyz needs");
    assert!(watchdog.metrics().render().contains("cleanup_backlog_pastes 2"));
    let ended = run(&world).await;
    assert_deleted(&ended, 2);
    assert_eq!(world.read("never").await.as_deref(), Some("c"));
    world.assert_drained().await;
}
