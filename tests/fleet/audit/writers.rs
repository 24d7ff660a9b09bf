//! Writers that are between upload and commit during an audit: none of them loses a body.

use std::time::Duration;

use tokio_postgres::{Client, error::SqlState};

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, found, report_of},
    support::{memory_s3::Call, process::Signal, *},
};

const PUT: &str = "SELECT drop_upload FROM paste_put($1, $2, $3, 4, NULL)";

/// Returns a writer's connection, with an open transaction that has stored that body.
async fn uncommitted_put(stage: &Stage, code: &str, body: &str, key: &str) -> Client {
    let writer = connect(&stage.database_url).await;
    writer.batch_execute("BEGIN").await.expect("begin");
    writer.query_one(PUT, &[&code, &hash(body), &key]).await.expect("put");
    writer
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_writer_is_about_to_commit_is_waited_for_and_kept() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    let writer = uncommitted_put(&stage, "p", "body", "key").await;
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.when_the_audit_waits(&writer, "COMMIT").await;
    let report = report_of(&audit.end().await, 0);
    assert_eq!(found(&report), 0, "{report:#}");
    assert!(stage.store.has("key") && stage.sentinels().await == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_writer_rolls_back_while_the_audit_waits_is_an_orphan() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    let writer = uncommitted_put(&stage, "p", "body", "key").await;
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.when_the_audit_waits(&writer, "ROLLBACK").await;
    let report = report_of(&audit.end().await, 0);
    assert_eq!((&report["orphans"], &report["repaired"]), (&1.into(), &1.into()));
    assert!(!stage.store.has("key") && stage.sentinels().await == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_does_not_commit_in_time_keeps_its_upload_and_hides_no_orphan() {
    let stage = Stage::new().await;
    for key in ["a", "key", "z"] {
        stage.store.put(key, 4, OLD);
    }
    let writer = uncommitted_put(&stage, "p", "body", "key").await;
    let report = stage.audited(0, &REPAIR_MOST).await;
    assert_eq!((&report["repaired"], &report["fresh_objects"]), (&2.into(), &1.into()));
    assert!(stage.store.has("key") && stage.store.len() == 1);
    writer.batch_execute("COMMIT").await.expect("commit");
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_with_several_puts_in_a_transaction_is_never_the_victim_of_a_deadlock() {
    let stage = Stage::new().await;
    for key in ["a", "b"] {
        stage.store.put(key, 4, OLD);
    }
    // The writer has locked "b" and then needs "a"; the audit inserts in the order of the keys.
    let writer = uncommitted_put(&stage, "p", "b", "b").await;
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.when_the_audit_waits(&writer, "").await;
    let second = writer.query_one(PUT, &[&"q", &hash("a"), &"a"]).await;
    let code = second.as_ref().err().and_then(|error| error.code().cloned());
    assert_ne!(code, Some(SqlState::T_R_DEADLOCK_DETECTED));
    writer.batch_execute("COMMIT").await.expect("commit or roll back");
    audit.end().await;
    // Whether writer or audit was first with "a": its object is deleted or counted, never both.
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_commits_after_the_audit_gets_an_error_and_uploads_again() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    let report = stage.audited(0, &REPAIR_MOST).await;
    assert_eq!((&report["orphans"], &report["objects_deleted"]), (&1.into(), &1.into()));
    let late = stage.db.query_one(PUT, &[&"p", &hash("body"), &"key"]).await;
    let error = late.expect_err("its upload is gone");
    assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION));
    stage.put("p", "body", Never).await;
    assert_eq!(stage.read("p").await.as_deref(), Some("body"));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_uploaded_under_a_sentinels_key_is_found_and_deleted() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    stage.audited(0, &REPAIR_MOST).await;
    stage.store.put("key", 4, Duration::from_secs(60));
    let young = stage.audited(0, &["--repair"]).await;
    assert_eq!((found(&young), &young["fresh_objects"]), (0, &1.into()));
    stage.store.age(OLD);
    assert_eq!(stage.audited(1, &[]).await["orphans"], 1);
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
    assert!(!stage.store.has("key") && stage.sentinels().await == 1);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_dies_between_sentinel_and_deletion_is_completed_by_the_next() {
    let stage = Stage::new().await;
    stage.store.put("key", 4, OLD);
    stage.store.hold(Call::Delete, 1);
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.store.held().await;
    audit.signal(Signal::KILL);
    audit.end().await;
    assert!(stage.store.has("key") && stage.sentinels().await == 1);
    stage.store.hold_no_more();
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["orphans"], 1);
    assert!(!stage.store.has("key"));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_repairs_at_once_do_each_other_no_harm() {
    let stage = Stage::new().await;
    stage.fill(500).await;
    for n in 0..300 {
        stage.store.put(&format!("orphan/{n}"), 4, OLD);
    }
    stage.run_sql("UPDATE content SET ref_count = 9 WHERE s3_key < '4'").await;
    stage.run_sql("DELETE FROM pastes WHERE short_code LIKE 'p1%'").await;
    let (one, other) =
        tokio::join!(stage.audit(&REPAIR_MOST).output(), stage.audit(&REPAIR_MOST).output());
    let (one, other) = (report_of(&one, 0), report_of(&other, 0));
    let repaired = [&one, &other].map(|report| report["repaired"].as_u64().expect("a number"));
    assert!(repaired.iter().sum::<u64>() >= 300, "{repaired:?}");
    assert_eq!(stage.store.len() as i64, stage.count("SELECT count(*) FROM pastes").await);
    stage.assert_nothing_wrong().await;
}
