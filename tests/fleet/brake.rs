//! The safety brake: a run that would delete more than the limits allow stops before it claims
//! anything.

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    process::Ended,
    *,
};

/// Creates a world with this many expired and live pastes, by plain SQL, with five contents.
async fn world(expired: i32, live: i32) -> World {
    let world = World::new().await;
    world.put_many(expired, 5).await;
    world
        .run_sql(&format!(
            "INSERT INTO pastes (short_code, content_hash, expires_at)
             SELECT 'live' || n, sha256('b1'), now() + interval '1 day'
             FROM generate_series(1, {live}) n;
             UPDATE content SET ref_count = ref_count + {live} WHERE content_hash = sha256('b1')"
        ))
        .await;
    world
}

fn run(world: &World, args: &[&str]) -> Process {
    world.program("cleanup-worker").args(&[&["run", "--format", "json"], args].concat())
}

/// Returns what a dry run reports about the brake.
async fn brake(world: &World, args: &[&str], max_rows: Option<&str>) -> Option<String> {
    let dry_run = run(world, &[&["--dry-run"], args].concat());
    let dry_run = match max_rows {
        Some(rows) => dry_run.env("CLEANUP_BRAKE_MAX_ROWS", rows),
        None => dry_run,
    };
    let ended = dry_run.output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    ended.json()["brake"].as_str().map(Into::into)
}

/// Asserts exit code 4, one line with the numbers and the remedy, and that nothing was claimed.
async fn assert_braked(world: &World, ended: &Ended, words: &[&str]) {
    ended.assert_refused(4, &[words, &["--override-brake"]].concat());
    let summary = ended.json();
    assert_eq!(
        (&summary["stopped_because"], &summary["rows_deleted"]),
        (&"brake".into(), &0.into())
    );
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_would_delete_most_of_a_large_table_stops_before_the_first_claim() {
    let world = world(130_000, 70_000).await;
    let ended = run(&world, &[]).output().await;
    assert_braked(&world, &ended, &["about", "brake.max_share allows (50 %)"]).await;
    let percent =
        ended.stderr().split(" %").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    assert!(percent.is_some_and(|percent: u32| (58..=72).contains(&percent)), "{}", ended.stderr());
    let overridden = run(&world, &["--override-brake", "--limit", "1000"]).output().await;
    assert_eq!(overridden.code(), 3, "{}", overridden.stderr());
    assert_eq!(overridden.json()["rows_deleted"], 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_statistics_do_not_hide_a_mass_expiry() {
    let world = world(0, 150_000).await;
    world.run_sql("ANALYZE pastes").await;
    assert_eq!(brake(&world, &[], None).await, None);
    world.run_sql("ALTER TABLE pastes SET (autovacuum_enabled = off)").await;
    world.run_sql("UPDATE pastes SET expires_at = now() WHERE short_code < 'live9'").await;
    let reason = brake(&world, &[], None).await.expect("a brake");
    assert!(reason.contains("brake.max_share"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn max_share_applies_only_from_a_hundred_thousand_due_pastes_on() {
    let world = world(99_999, 10).await;
    assert_eq!(brake(&world, &[], None).await, None);
    world.run_sql("UPDATE pastes SET expires_at = now() WHERE short_code = 'live1'").await;
    let reason = brake(&world, &[], None).await.expect("a brake");
    assert!(reason.contains("100,000 of 100,009 pastes are due, 100 %"), "{reason}");
    let limited = ["--limit", "99999"];
    assert_eq!(brake(&world, &limited, None).await, None, "--limit keeps it below");
}

#[tokio::test(flavor = "multi_thread")]
async fn max_rows_is_the_most_that_a_run_may_delete() {
    let world = world(31, 10).await;
    let ended = run(&world, &[]).env("CLEANUP_BRAKE_MAX_ROWS", "30").output().await;
    assert_braked(&world, &ended, &["would delete more than 30 pastes", "brake.max_rows"]).await;
    assert_eq!(brake(&world, &[], Some("31")).await, None);
    assert_eq!(brake(&world, &["--limit", "30"], Some("30")).await, None);
    let overridden = run(&world, &["--override-brake"]).env("CLEANUP_BRAKE_MAX_ROWS", "30");
    let overridden = overridden.output().await;
    assert_eq!((overridden.code(), &overridden.json()["rows_deleted"]), (0, &31.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn max_rows_is_compared_with_an_exact_count_on_a_large_table_too() {
    let world = world(130_000, 140_000).await;
    assert_eq!(brake(&world, &[], Some("130000")).await, None);
    let reason = brake(&world, &[], Some("129999")).await.expect("a brake");
    assert!(reason.contains("would delete more than 129,999 pastes"), "{reason}");
}

/// Open batches count: 25 claimed pastes and 10 more are over the limit, 10 alone are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_mass_expiry_in_the_middle_of_a_run_trips_the_brake_too() {
    let world = world(25, 50).await;
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let mut worker = run(&world, &["--concurrency", "1"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_BRAKE_MAX_ROWS", "30")
        .start();
    s3.called(1).await;
    world.run_sql("UPDATE pastes SET expires_at = now() WHERE short_code LIKE 'live4_'").await;
    worker.until_it_logs("finishing 1 open batch").await;
    s3.let_go();
    let ended = worker.end().await;
    ended.assert_refused(4, &["would delete more than 30 pastes", "brake.max_rows"]);
    assert_eq!(ended.json()["rows_deleted"], 25, "what was open is finished");
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_brake_share_is_refused() {
    let world = World::new().await;
    for share in ["0", "1.5", "-1", "NaN"] {
        let ended = run(&world, &[]).env("CLEANUP_BRAKE_MAX_SHARE", share).output().await;
        ended.assert_refused(2, &["max_share"]);
    }
}
