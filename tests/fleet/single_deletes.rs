//! Stores that have no DeleteObjects, take fewer keys in one, or acknowledge deletes in any bucket: found
//! out before anything is claimed, and drained.

use std::sync::atomic::Ordering::Relaxed;

use paste_cleanup::{
    config::{BulkDelete, Settings},
    worker::report::StoppedBecause,
};

use crate::support::{
    faulty_s3::{FaultyS3, Kind, Mode},
    findings::diagnose,
    *,
};

const NO_BULK: Kind = Kind {
    no_bulk: Some((501, "NotImplemented")),
    most_keys: None,
    most_carried_out: None,
    any_bucket: None,
};
/// What the log says when deletes are no longer in bulk.
const SWITCHED: &str = "deleting objects one by one";

/// A world with expired pastes, one of which shares its object with a live one, and a store of this kind.
async fn world_with(kind: Kind, pastes: usize) -> (World, FaultyS3) {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    s3.set_kind(kind);
    for n in 0..pastes {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
    (world, s3)
}

fn run(world: &World, s3: &FaultyS3) -> Process {
    let run = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    run.env("AWS_ENDPOINT_URL", &s3.url)
}

/// Asserts that every object but the shared one was deleted, one by one.
async fn assert_erased_one_by_one(world: &World, s3: &FaultyS3, pastes: u64) {
    assert_eq!(s3.stats.singles.load(Relaxed), pastes - 1);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_delete_objects_is_noticed_before_any_claim_and_drained_one_by_one() {
    for refusal in [(501, "NotImplemented"), (405, "MethodNotAllowed"), (400, "InvalidArgument")] {
        let (world, s3) = world_with(Kind { no_bulk: Some(refusal), ..Kind::default() }, 30).await;
        let ended = run(&world, &s3).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        assert!(ended.stderr().contains(SWITCHED), "{}", ended.stderr());
        assert!(!ended.stderr().contains("paused claims"), "{}", ended.stderr());
        assert_eq!(s3.stats.bulk_refused.load(Relaxed), 2, "two probes, one with each checksum");
        assert_erased_one_by_one(&world, &s3, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_sends_no_delete_objects_and_always_sends_nothing_else() {
    let (world, s3) = world_with(Kind::default(), 10).await;
    let ended = run(&world, &s3).env("CLEANUP_S3_BULK_DELETE", "never").output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_erased_one_by_one(&world, &s3, 10).await;

    let (world, s3) = world_with(NO_BULK, 1).await;
    let refused = run(&world, &s3).env("CLEANUP_S3_BULK_DELETE", "always").output().await;
    refused.assert_refused(1, &["DeleteObjects", "CLEANUP_S3_BULK_DELETE=auto"]);
    let doctor = world.program("cleanupctl").env("AWS_ENDPOINT_URL", &s3.url);
    let doctor = diagnose(doctor.env("CLEANUP_S3_BULK_DELETE", "always")).await;
    doctor.assert_says("bucket", "failure", &["neither checksum", "CLEANUP_S3_BULK_DELETE=auto"]);
    assert_eq!(s3.stats.singles.load(Relaxed), 0);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_that_is_no_store_is_never_taken_for_one_without_delete_objects() {
    // Without an error code the refusal is not S3's, and a DELETE could be answered by anything.
    let (world, s3) = world_with(Kind::default(), 1).await;
    for status in [501, 404] {
        s3.set_kind(Kind { no_bulk: Some((status, "")), ..Kind::default() });
        let ended = run(&world, &s3).output().await;
        ended.assert_refused(1, &["bucket"]);
        assert_eq!((s3.calls(), s3.probes()), (0, 0), "no DELETE was sent");
    }
    s3.set_kind(Kind::default());

    for content_type in ["text/html", "application/json"] {
        s3.set_mode(Mode::Page { content_type });
        let ended = run(&world, &s3).env("CLEANUP_S3_BULK_DELETE", "never").output().await;
        ended.assert_refused(1, &["not that of an object store", "AWS_ENDPOINT_URL"]);
    }
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_64_requests_are_in_flight_in_all_batches_together() {
    let (world, s3) = world_with(NO_BULK, 200).await;
    s3.set_mode(Mode::Holding);
    let worker = run(&world, &s3).args(&["--batch-size", "40"]).start();
    s3.called(64).await;
    s3.let_go();
    assert_eq!(worker.end().await.code(), 0);
    assert_eq!(s3.stats.most_in_flight.load(Relaxed), 64);
    assert_erased_one_by_one(&world, &s3, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_refused_alone_costs_only_its_own_row_an_attempt() {
    let (world, s3) = world_with(NO_BULK, 100).await;
    let key = world.put("held", "held", Ago(60.0)).await;
    let one_by_one = |settings: &mut Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.bulk_delete = BulkDelete::Never;
    };
    let worker = world.worker_with(one_by_one).await;
    for (code, attempts) in [("ObjectLocked", 1), ("AccessDenied", 2)] {
        s3.set_mode(Mode::Refusing { text: key.clone(), code });
        let claim = claim_some(&worker, 200).await;
        carry_out(&worker, &claim).await;
        let left = "SELECT short_code || attempts FROM pastes WHERE short_code <> 'live'";
        assert_eq!(world.text(left).await, Some(format!("held{attempts}")));
        world.assert_consistent().await;
        world.end_backoff().await;
    }
}

/// As with a policy for a prefix, or a key that the store does not take at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_denied_together_with_its_neighbours_holds_up_no_other_paste() {
    let (world, s3) = world_with(NO_BULK, 20).await;
    let key = world.put("held", "held", Ago(60.0)).await;
    s3.set_mode(Mode::Refusing { text: key[..40].into(), code: "AccessDenied" });
    let one_by_one = |settings: &mut Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.bulk_delete = BulkDelete::Never;
    };
    let worker = world.worker_with(one_by_one).await;
    let claim = claim_some(&worker, 200).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT short_code || attempts FROM pastes WHERE short_code <> 'live'";
    assert_eq!(world.text(left).await.as_deref(), Some("held1"));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_end_between_single_deletes_cost_no_paste_an_attempt() {
    let (world, s3) = world_with(NO_BULK, 100).await;
    s3.set_mode(Mode::Holding);
    let mut worker = run(&world, &s3).start();
    s3.called(64).await;
    s3.let_go_and(Mode::Failing { status: 403, code: "AccessDenied" });
    worker.until_it_logs("paused claims").await;
    s3.set_mode(Mode::Normal);
    let ended = worker.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(!ended.stderr().contains("pastes failed"), "{}", ended.stderr());
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_single_delete_was_throttled_is_sent_again() {
    let (world, s3) = world_with(NO_BULK, 300).await;
    s3.sometimes(0.1, 7, Mode::Failing { status: 503, code: "SlowDown" });
    let ended = run(&world, &s3).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(s3.stats.touched.load(Relaxed) > 1, "some were throttled");
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_single_deletes_leaves_only_a_claim_that_the_watchdog_resets() {
    let (world, s3) = world_with(NO_BULK, 100).await;
    s3.set_mode(Mode::Holding);
    let worker = run(&world, &s3).start();
    s3.called(64).await;
    worker.signal(Signal::KILL);
    worker.end().await;
    s3.let_go();
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.claims, 1);
    world.end_backoff().await;
    assert_eq!(run(&world, &s3).output().await.code(), 0);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_fewer_keys_in_a_call_is_drained_and_its_limit_is_learned_once() {
    let kind = Kind { most_keys: Some(10), ..Kind::default() };
    let (world, s3) = world_with(kind, 0).await;
    world.put_many(200, 200).await;
    let run = run(&world, &s3).args(&["--batch-size", "40", "--concurrency", "1"]);
    let ended = run.output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE short_code <> 'live'").await, 0);
    // 40 and 20 keys, each sent once with the objects' keys and once with keys that cannot exist.
    assert_eq!(s3.stats.too_many.load(Relaxed), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_carries_out_only_a_part_of_a_call_costs_no_paste_an_attempt() {
    let kind = Kind { most_carried_out: Some(10), ..Kind::default() };
    let (world, s3) = world_with(kind, 0).await;
    world.put_many(300, 300).await;
    // All of it takes longer than the deadline, each answer takes less.
    let short = |settings: &mut Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.deadline = std::time::Duration::from_secs(1);
    };
    let summary = drain(&world.worker_with(short).await).await;
    assert_eq!((summary.stopped_because, summary.rows_failed), (StoppedBecause::Drained, 0));
    assert_eq!(summary.claims_released, 0, "no batch was given up");
    world.assert_drained().await;
}

/// The keys that fail are sent again, and are more than the store answers for in a call.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_wait_behind_damaged_ones_in_such_a_store_are_deleted_and_none_pays_an_attempt() {
    let kind = Kind { most_carried_out: Some(5), ..Kind::default() };
    let (world, s3) = world_with(kind, 0).await;
    world.put_many(200, 200).await;
    // A sixteenth of the keys.
    s3.set_mode(Mode::Refusing { text: "0/x".into(), code: "InternalError" });
    let damaged = "SELECT count(*) FROM content WHERE s3_key LIKE '%0/x'";
    let damaged = world.count(damaged).await;
    assert!(damaged > 5, "only {damaged}");
    let short = |settings: &mut Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.deadline = std::time::Duration::from_secs(2);
    };
    let worker = world.worker_with(short).await;
    let claim = claim_some(&worker, 300).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT count(*) FROM pastes WHERE short_code <> 'live'";
    assert_eq!(world.count(left).await, damaged);
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE attempts > 0").await, 0);
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn single_deletes_keep_to_the_pace_of_the_settings() {
    let (world, s3) = world_with(NO_BULK, 60).await;
    let run = run(&world, &s3).env("CLEANUP_S3_MAX_KEYS_PER_SECOND", "100");
    let ended = run.output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let waited = ended.json()["waited_ms"]["s3_pace"].as_u64();
    assert!(waited.is_some_and(|ms| ms > 0), "{}", ended.stdout());
    assert_erased_one_by_one(&world, &s3, 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_noticed_although_the_store_acknowledges_deletes_in_it() {
    let lax = |status| Kind { any_bucket: Some(status), ..Kind::default() };
    let (world, s3) = world_with(lax(404), 1).await;
    let doctor = || world.program("cleanupctl").env("AWS_ENDPOINT_URL", &s3.url);
    run(&world, &s3).output().await.assert_refused(1, &["does not exist", "S3_BUCKET"]);
    diagnose(doctor()).await.assert_says("bucket", "failure", &["does not exist"]);
    assert_eq!(world.count("SELECT count(*) FROM cleanup_fleet WHERE bucket IS NOT NULL").await, 0);
    // Without the right to ask for the bucket.
    s3.set_kind(lax(403));
    let words = ["could not check that bucket", "s3:ListBucket"];
    diagnose(doctor()).await.assert_says("bucket", "warning", &words);
    let ended = run(&world, &s3).output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(words.iter().all(|word| ended.stderr().contains(word)), "{}", ended.stderr());
    s3.set_kind(lax(200));
    diagnose(doctor()).await.assert_says("bucket", "ok", &["with either checksum"]);
    let ended = run(&world, &s3).output().await;
    assert!(!ended.stderr().contains(words[0]), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_that_a_store_without_delete_objects_works_one_by_one() {
    let (world, s3) = world_with(NO_BULK, 0).await;
    let doctor = world.program("cleanupctl").env("AWS_ENDPOINT_URL", &s3.url);
    let words = ["one by one", "NotImplemented"];
    diagnose(doctor).await.assert_says("bucket", "ok", &words);
    assert_eq!(s3.calls(), 0, "only keys that cannot exist were deleted");
}
