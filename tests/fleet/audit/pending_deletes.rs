//! Objects with a pending delete, or that the fleet deletes during the audit, are no orphans; content
//! that is erased during the audit has no missing object.

use paste_cleanup::worker::report::PhaseTimes;

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, found, names, report_of},
    support::{memory_s3::Call, process::Running, *},
};

/// One expired paste, and a worker to erase it.
async fn stage() -> (Stage, std::sync::Arc<paste_cleanup::worker::Worker>) {
    let stage = Stage::new().await;
    stage.put("p", "body", Ago(60.0)).await;
    stage.store.age(OLD);
    let worker = stage.worker().await;
    (stage, worker)
}

/// Starts an audit that has listed the bucket and not queried the tables yet.
async fn listed(stage: &Stage) -> Running {
    stage.store.hold(Call::List, 1);
    let audit = stage.audit(&["--repair", "--grace", "0s"]).start();
    stage.store.held().await;
    audit
}

async fn assert_it_finds_nothing(stage: &Stage, audit: Running) {
    stage.store.let_go();
    let report = report_of(&audit.end().await, 0);
    assert_eq!(found(&report), 0, "{report:#}");
    assert_eq!(stage.sentinels().await, 0);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_pending_in_an_open_claim_is_no_orphan() {
    let (stage, worker) = stage().await;
    let audit = listed(&stage).await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    assert_it_finds_nothing(&stage, audit).await;
    assert_eq!(stage.store.len(), 1, "the worker must delete it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_pending_in_a_row_of_a_reset_claim_is_no_orphan() {
    let (stage, worker) = stage().await;
    let audit = listed(&stage).await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    stage.expire_leases(7201.0).await;
    assert_eq!(stage.sweep().await.reset.claims, 1);
    assert_it_finds_nothing(&stage, audit).await;
    // Nor is it while the row with the pending delete is claimed again.
    stage.end_backoff().await;
    let again = claim_some(&worker, 1).await;
    stage.assert_nothing_wrong().await;
    carry_out(&worker, &again).await;
    assert_eq!(stage.store.len(), 0);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_pending_in_a_released_claim_is_no_orphan() {
    let (stage, worker) = stage().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    let audit = listed(&stage).await;
    worker.release(claim.fence, "a test").await.expect("release");
    stage.run_sql("DELETE FROM deletion_claims").await; // pruned
    assert_it_finds_nothing(&stage, audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_the_fleet_deletes_during_the_audit_is_no_orphan() {
    let (stage, worker) = stage().await;
    let audit = listed(&stage).await;
    let claim = claim_some(&worker, 1).await;
    carry_out(&worker, &claim).await;
    assert_it_finds_nothing(&stage, audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_stored_and_loses_its_last_reference_during_the_audit_is_no_orphan() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    let worker = stage.worker().await;
    // No row knows it, and the bucket is being checked again.
    stage.store.hold(Call::Probe, 1);
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.store.held().await;
    stage.put_row("p", &hash("body"), Some("key"), 4, Ago(60.0)).await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    stage.store.let_go();
    let report = report_of(&audit.end().await, 0);
    assert_eq!(found(&report), 0, "{report:#}");
    assert!(stage.store.has("key"), "the worker must delete it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_key_that_no_row_took_over_is_an_orphan() {
    let (stage, worker) = stage().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    stage.run_sql("DELETE FROM pastes").await;
    stage.expire_leases(7201.0).await;
    stage.sweep().await;
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
    assert_eq!(stage.store.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_content_is_decremented_after_the_bucket_was_checked_is_not_missing() {
    let (stage, worker) = stage().await;
    let claim = claim_some(&worker, 1).await;
    // The object is not listed, and the bucket is being checked again.
    let key = stage.keys().await.remove(0);
    stage.store.remove(&key);
    stage.store.hold(Call::Probe, 1);
    let audit = stage.audit(&["--grace", "0s"]).start();
    stage.store.held().await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &PhaseTimes::default()).await.expect("finish");
    assert_it_finds_nothing(&stage, audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_stored_after_the_bucket_was_listed_is_not_missing() {
    let stage = Stage::new().await;
    stage.store.hold(Call::List, 1);
    let audit = stage.audit(&["--grace", "0s"]).start();
    stage.store.held().await;
    stage.put("p", "body", Never).await;
    assert_it_finds_nothing(&stage, audit).await;
    assert_eq!(stage.store.calls(Call::Probe), 1, "it was checked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_object_is_reported_with_its_live_pastes_and_nothing_is_deleted() {
    let stage = Stage::new().await;
    for n in 0..8 {
        stage.put(&format!("p{n}"), "body", In(3600.0)).await;
    }
    stage.put("expired", "body", Ago(60.0)).await;
    let key = stage.keys().await.remove(0);
    stage.store.remove(&key);
    let report = stage.audited(1, &["--repair", "--grace", "0s"]).await;
    let finding = &report["findings"][0];
    assert_eq!((&finding["kind"], &finding["key"]), (&"missing_object".into(), &key.into()));
    assert_eq!(finding["live_pastes"], 8);
    assert_eq!(finding["short_codes"].as_array().expect("codes").len(), 5);
    assert_eq!(stage.count("SELECT count(*) FROM content").await, 1);
    assert_eq!(stage.count("SELECT count(*) FROM pastes").await, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn content_whose_object_is_pending_deletion_is_named_and_not_touched() {
    let stage = Stage::new().await;
    let by_paste = stage.put("a", "one", Never).await;
    let by_claim = stage.put("b", "two", Never).await;
    stage.put("done", "three", Never).await;
    stage.put("gone", "four", Ago(60.0)).await;
    let worker = stage.worker().await;
    claim_some(&worker, 1).await;
    stage
        .run_sql(&format!(
            "UPDATE deletion_claims SET pending_s3_keys = ARRAY['{by_claim}'], decremented_at = now();
             INSERT INTO pastes (short_code, pending_s3_key, deletion_status)
             VALUES ('x', '{by_paste}', 'NOT_EXPIRED');
             INSERT INTO pastes (short_code, pending_s3_key, deletion_status)
             SELECT 'y', s3_key, 'DELETED' FROM content
             WHERE content_hash = (SELECT content_hash FROM pastes WHERE short_code = 'done')"
        ))
        .await;
    let report = stage.audited(1, &["--repair"]).await;
    assert_eq!(names(&report, "pending_deletion"), [by_paste, by_claim].into());
    assert_eq!((&report["pending_deletions"], stage.store.len()), (&2.into(), 4));
}
