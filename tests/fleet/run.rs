//! A whole run: what it drains, when it stops, what it reports.

use std::{sync::Arc, time::Duration};

use crate::support::*;
use paste_cleanup::worker::{report::StoppedBecause, run::Options};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_filled_by_plain_sql_and_plain_uploads_is_drained() {
    let world = World::new().await;
    for n in 0..30 {
        world.upload(&format!("objects/{n}"), &format!("body {n}")).await;
    }
    world
        .run_sql(
            "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count)
             SELECT sha256(('body ' || n)::bytea), 'objects/' || n, 7, 2
             FROM generate_series(0, 29) n;
             INSERT INTO pastes (short_code, content_hash, expires_at)
             SELECT 'a' || n, sha256(('body ' || n)::bytea), now() - interval '1 hour'
             FROM generate_series(0, 29) n;
             INSERT INTO pastes (short_code, content_hash, expires_at)
             SELECT 'b' || n, sha256(('body ' || n)::bytea),
                    CASE WHEN n < 20 THEN now() - interval '1 minute'
                         WHEN n < 25 THEN now() + interval '1 day' END
             FROM generate_series(0, 29) n",
        )
        .await;
    let ended = world.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(summary["rows_deleted"], 50);
    assert_eq!(summary["objects_deleted"], 20);
    assert_eq!(summary["bytes_freed"], 140);
    assert_eq!(summary["stopped_because"], "drained");
    assert_eq!(world.read("b27").await.as_deref(), Some("body 27"), "never expires");
    assert_eq!(world.read("b22").await.as_deref(), Some("body 22"), "expires tomorrow");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn never_expiring_and_future_pastes_are_untouched() {
    let world = World::new().await;
    world.put("never", "a", Never).await;
    world.put("future", "b", In(3600.0)).await;
    let before = world.text("SELECT string_agg(t::text, ',' ORDER BY t) FROM pastes t").await;
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 0);
    let after = world.text("SELECT string_agg(t::text, ',' ORDER BY t) FROM pastes t").await;
    assert_eq!(before, after);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_reports_what_would_be_deleted_and_changes_nothing() {
    let world = World::new().await;
    world.put("a", "shared with a live paste", Ago(60.0)).await;
    world.put("live", "shared with a live paste", Never).await;
    world.put("b", "four", Ago(60.0)).await;
    world.put("c", "four", Ago(60.0)).await;
    let state = "SELECT (SELECT string_agg(t::text, ',' ORDER BY t) FROM pastes t) ||
                        (SELECT string_agg(t::text, ',' ORDER BY t) FROM content t) ||
                        (SELECT count(*) FROM deletion_claims)";
    let (before, keys) = (world.text(state).await, world.keys().await);
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--dry-run", "--format", "json"])
        .output()
        .await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let would = ended.json();
    assert_eq!((&would["rows"], &would["objects"]), (&3.into(), &1.into()));
    assert_eq!(would["bytes"], 4);
    assert_eq!((world.text(state).await, world.keys().await), (before, keys));
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_stops_after_exactly_that_many_pastes_with_exit_3() {
    let world = World::new().await;
    world.put_many(100, 100).await;
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--limit", "37", "--batch-size", "10", "--format", "json"])
        .output()
        .await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "limit");
    assert_eq!(ended.json()["rows_deleted"], 37);
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 63);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_at_its_deadline_with_nothing_claimed() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let worker = world.worker().await;
    let deadline = Some(tokio::time::Instant::now());
    let summary = worker.run(Options { deadline, ..Options::default() }).await;
    assert_eq!(summary.stopped_because, StoppedBecause::Deadline);
    assert_eq!(summary.left.expect("left").due, 10);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_time_is_a_deadline_with_exit_3() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--run-time", "0s", "--format", "json"])
        .output()
        .await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "deadline");
    assert_eq!(world.read("a").await.as_deref(), Some("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_fleet_claims_nothing_and_names_the_reason() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    world
        .run_sql("UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'moving house'")
        .await;
    let ended = world.program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!(ended.code(), 3, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "paused");
    assert!(ended.stderr().contains("moving house"));
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_not_drained_while_another_claim_is_uncommitted() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    world.put("b", "b", Ago(60.0)).await;
    // Another worker claims everything and has not committed.
    let mut other = connect(&world.database_url).await;
    let uncommitted = other.transaction().await.expect("begin");
    let claim = include_str!("../../sql/queries/claim/claim.sql");
    let other_worker = uuid::Uuid::new_v4();
    let claimed = uncommitted
        .query(claim, &[&other_worker, &10, &None::<std::time::SystemTime>, &100, &false])
        .await
        .expect("claim");
    assert_eq!(claimed.len(), 2);
    let worker = world.worker().await;
    let observed = Arc::clone(&worker);
    let running = tokio::spawn(async move { drain(&worker).await });
    // It has claimed nothing, checked what is due, and is not drained.
    while observed.tally.claims_tried() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!running.is_finished(), "concluded that it was drained");
    uncommitted.rollback().await.expect("rollback");
    let summary = running.await.expect("run");
    assert_eq!((summary.rows_deleted, summary.stopped_because), (2, StoppedBecause::Drained));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_come_due_within_a_minute_are_waited_for() {
    let world = World::new().await;
    world.put("soon", "a", Ago(60.0)).await;
    world.put("later", "b", Ago(60.0)).await;
    world
        .run_sql(
            "UPDATE pastes SET attempts = 1, retry_at = now() + interval '1500 ms'
             WHERE short_code = 'soon';
             UPDATE pastes SET attempts = 1, retry_at = now() + interval '1 hour'
             WHERE short_code = 'later'",
        )
        .await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.rows_deleted, summary.stopped_because), (1, StoppedBecause::Drained));
    assert_eq!(summary.left.expect("left").backing_off, 1, "the summary reports the rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_claimed_by_others_are_named_in_the_summary() {
    let world = World::new().await;
    world.put_many(10, 10).await;
    let other = world.worker().await;
    claim_some(&other, 4).await;
    let summary = drain(&world.worker().await).await;
    assert_eq!(summary.rows_deleted, 6);
    assert_eq!(summary.left.expect("left").claimed_by_others, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_batches_are_in_flight_at_once() {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let s3 = faulty_s3::FaultyS3::start(&world, faulty_s3::Mode::Holding).await;
    let worker = world
        .worker_with(|settings| {
            settings.s3.endpoint = Some(s3.url.clone());
            settings.worker.batch_size = 5;
            settings.worker.concurrency = 4;
        })
        .await;
    let running = tokio::spawn(async move { drain(&worker).await });
    s3.called(4).await;
    s3.let_go();
    assert_eq!(running.await.expect("run").batches, 4);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_must_run_alone_is_claimed_with_no_other_claim_open() {
    let world = World::new().await;
    for n in 0..10 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("culprit", "c", Ago(30.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 3 WHERE short_code = 'culprit'").await;
    let worker = world.worker_with(|settings| settings.worker.batch_size = 5).await;
    let summary = drain(&worker).await;
    assert_eq!((summary.rows_deleted, summary.stopped_because), (11, StoppedBecause::Drained));
    let overlaps = "SELECT count(*) FROM deletion_claims alone, deletion_claims other
                    WHERE alone.rows_claimed = 1 AND other.id <> alone.id
                      AND tstzrange(alone.claimed_at, alone.finished_at)
                          && tstzrange(other.claimed_at, other.finished_at)";
    assert_eq!(world.count(overlaps).await, 0, "another claim was open beside it");
    world.assert_drained().await;
}
