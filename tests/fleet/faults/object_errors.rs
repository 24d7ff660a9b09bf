//! Single objects that S3 does not delete: their rows fail, and no other row does.

use paste_cleanup::worker::report::StoppedBecause;

use super::{LONG, SHORT, refusing, worker_within, world_within};
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_s3_refuses_costs_only_its_own_row_an_attempt() {
    let (world, s3, worker) = world_within(LONG).await;
    for code in ["a", "held", "c"] {
        world.put(code, &format!("text of {code}"), Ago(60.0)).await;
    }
    let key = world
        .text(
            "SELECT s3_key FROM pastes JOIN content USING (content_hash) WHERE short_code = 'held'",
        )
        .await;
    let key = key.expect("key");
    s3.set_mode(refusing(key.clone(), "ObjectLocked"));
    let claim = claim_some(&worker, 10).await;
    carry_out(&worker, &claim).await;
    let failed = "SELECT pending_s3_key FROM pastes WHERE short_code = 'held' AND attempts = 1
                    AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NULL
                    AND claim_id IS NULL AND retry_at > now() - interval '1 minute'
                    AND last_error = 'S3 ObjectLocked: no'";
    assert_eq!(world.text(failed).await, Some(key.clone()));
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 1, "the others are gone");
    world.assert_consistent().await;
    s3.set_mode(Mode::Normal);
    world.end_backoff().await;
    assert_eq!(drain(&worker).await.objects_deleted, 1);
    assert_eq!(world.object(&key).await, None);
    world.assert_drained().await;
}

/// A damaged object, or an unavailable part of the store: its key is neither deleted nor refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_keeps_failing_delays_no_other_row_and_costs_no_attempt() {
    let (world, s3, worker) = world_within(SHORT).await;
    let key = world.put("damaged", "a", Ago(120.0)).await;
    for n in 0..9 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    s3.set_mode(refusing(key.clone(), "InternalError"));
    let summary = drain(&worker).await;
    assert_eq!((summary.rows_deleted, summary.rows_failed), (9, 1));
    assert_eq!(summary.stopped_because, StoppedBecause::Failed, "reported as a failure");
    let waits = "SELECT pending_s3_key FROM pastes WHERE short_code = 'damaged' AND attempts = 0
                 AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NULL AND claim_id IS NULL
                 AND retry_at > now() + interval '10 minutes'
                 AND last_error = 'S3 InternalError: no'";
    assert_eq!(world.text(waits).await, Some(key));
    world.assert_consistent().await;
    s3.set_mode(Mode::Normal);
    world.end_backoff().await;
    assert_eq!(drain(&world.worker().await).await.objects_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_max_attempts_times_is_a_dead_letter_with_its_last_error() {
    let (world, s3, worker) = world_within(LONG).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    s3.set_mode(refusing(key.clone(), "ObjectLocked"));
    for _ in 0..5 {
        let claim = claim_some(&worker, 10).await;
        carry_out(&worker, &claim).await;
        world.end_backoff().await;
    }
    let dead = "SELECT count(*) FROM pastes WHERE retry_at = 'infinity' AND attempts = 5
                AND last_error = 'S3 ObjectLocked: no' AND pending_s3_key IS NOT NULL";
    assert_eq!(world.count(dead).await, 1);
    // A later run is drained: the row failed in an earlier one.
    let summary = drain(&worker_within(&world, &s3, LONG).await).await;
    assert_eq!(summary.stopped_because, StoppedBecause::Drained);
    assert_eq!(summary.left.expect("left").dead_letters, 1, "in the summary");
    assert_eq!(world.object(&key).await.as_deref(), Some("a"), "still pending");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_failed_rows_reports_them_and_exits_1() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    world.run_sql("UPDATE pastes SET attempts = 4 WHERE short_code = 'held'").await;
    s3.set_mode(refusing(key, "ObjectLocked"));
    let ended = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .output()
        .await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!(summary["stopped_because"], "failed");
    assert_eq!((&summary["rows_failed"], &summary["rows_deleted"]), (&1.into(), &1.into()));
    assert!(ended.stderr().contains("1 paste could not be deleted"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_already_gone_is_a_success() {
    let world = World::new().await;
    let key = world.put("a", "a", Ago(60.0)).await;
    world.s3.delete_object().bucket(&world.bucket).key(&key).send().await.expect("delete");
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_answered_with_no_such_key_is_a_success() {
    let (world, s3, worker) = world_within(LONG).await;
    let key = world.put("a", "a", Ago(60.0)).await;
    s3.set_mode(refusing(key, "NoSuchKey"));
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    assert_eq!(world.count("SELECT count(*) FROM pastes").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_object_among_others_that_are_deleted_is_a_row_error() {
    let (world, s3, worker) = world_within(LONG).await;
    let key = world.put("held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    s3.set_mode(refusing(key, "AccessDenied"));
    let claim = claim_some(&worker, 10).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT short_code || attempts FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("held1"));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_makes_s3_reject_the_whole_call_is_found_and_failed_alone() {
    let (world, s3, worker) = world_within(LONG).await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let key = world.put("culprit", "poison", Ago(60.0)).await;
    s3.set_mode(Mode::RejectingCall { text: key });
    let claim = claim_some(&worker, 100).await;
    carry_out(&worker, &claim).await;
    let left = "SELECT string_agg(short_code || attempts, ',') FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("culprit1"));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_checksum_md5_a_delete_carries_content_md5_and_nothing_newer() {
    let world = World::new().await;
    world.put("a", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = world
        .worker_with(|settings| {
            settings.s3.endpoint = Some(s3.url.clone());
            settings.s3.checksum = paste_cleanup::config::Checksum::Md5;
        })
        .await;
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    let headers = s3.headers.lock().expect("headers").clone();
    assert!(headers.contains_key("content-md5"), "{headers:?}");
    assert!(!headers.keys().any(|name| name.as_str().contains("checksum")), "{headers:?}");
    // A real store accepts it, too.
    world.put("b", "b", Ago(60.0)).await;
    let worker = world.worker_with(|s| s.s3.checksum = paste_cleanup::config::Checksum::Md5).await;
    assert_eq!(drain(&worker).await.objects_deleted, 1);
    world.assert_drained().await;
}
