//! Counts: recounted under the content row's lock, by the rule that a decrement uses.

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, found, report_of},
    support::*,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_not_committed_when_the_audit_recounts_is_counted() {
    let stage = Stage::new().await;
    stage.put("p", "body", Never).await;
    stage.run_sql("UPDATE content SET ref_count = 5").await;
    let writer = connect(&stage.database_url).await;
    writer.batch_execute("BEGIN").await.expect("begin");
    let put = "SELECT outcome FROM paste_put('q', $1, NULL, 4, NULL)";
    writer.query_one(put, &[&hash("body")]).await.expect("put");
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.when_the_audit_waits(&writer, "COMMIT").await;
    let report = report_of(&audit.end().await, 0);
    assert_eq!((&report["wrong_counts"], &report["repaired"]), (&1.into(), &1.into()));
    assert_eq!(stage.count("SELECT ref_count::bigint FROM content").await, 2);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_in_progress_are_counted_until_their_claim_is_decremented() {
    let stage = Stage::new().await;
    for code in ["a", "b", "c", "live"] {
        stage.put(code, "shared", if code == "live" { Never } else { Ago(60.0) }).await;
    }
    let worker = stage.worker().await;
    let claim = claim_some(&worker, 2).await;
    // And one that a third party marked.
    stage
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS' WHERE short_code = 'c'",
        )
        .await;
    stage.assert_nothing_wrong().await;
    worker.decrement(&claim).await.expect("decrement");
    assert_eq!(stage.count("SELECT ref_count::bigint FROM content").await, 2);
    stage.assert_nothing_wrong().await;
    // Nor does a recount include the decremented ones.
    stage.run_sql("UPDATE content SET ref_count = 9").await;
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
    assert_eq!(stage.count("SELECT ref_count::bigint FROM content").await, 2);
    // Reset, or ended by hand: rows of a claim that is not open are counted.
    stage.put("d", "shared", Ago(60.0)).await;
    claim_some(&worker, 1).await;
    stage.run_sql("DELETE FROM deletion_claims WHERE decremented_at IS NULL").await;
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_whose_last_reference_is_in_progress_is_not_deleted() {
    let stage = Stage::new().await;
    stage.put("p", "body", Ago(60.0)).await;
    let worker = stage.worker().await;
    let claim = claim_some(&worker, 1).await;
    stage.run_sql("UPDATE content SET ref_count = 0").await;
    let report = stage.audited(0, &REPAIR_MOST).await;
    assert_eq!((&report["wrong_counts"], &report["unreferenced_content"]), (&1.into(), &0.into()));
    worker.release(claim.fence, "a test").await.expect("release");
    assert_eq!(stage.read("p").await.as_deref(), Some("body"));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreferenced_content_is_deleted_row_first_and_its_key_stays_reserved() {
    let stage = Stage::new().await;
    let key = stage.put("p", "body", Never).await;
    stage.run_sql("DELETE FROM pastes").await;
    assert_eq!(stage.audited(1, &["--grace", "0s"]).await["unreferenced_content"], 1);
    let young = stage.audited(0, &["--repair"]).await;
    assert_eq!((found(&young), &young["fresh_rows"]), (0, &1.into()), "younger than a day");
    let report = stage.audited(0, &REPAIR_MOST).await;
    assert_eq!(
        (&report["unreferenced_content"], &report["objects_deleted"]),
        (&1.into(), &1.into())
    );
    assert!(!stage.store.has(&key) && stage.sentinels().await == 1);
    // The same body again, under a new key.
    stage.put("p", "body", Never).await;
    assert_eq!(stage.read("p").await.as_deref(), Some("body"));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_put_again_while_the_audit_waits_for_its_row_stays() {
    let stage = Stage::new().await;
    let key = stage.put("p", "body", Never).await;
    stage.run_sql("DELETE FROM pastes; UPDATE content SET ref_count = 0").await;
    let writer = connect(&stage.database_url).await;
    writer.batch_execute("BEGIN").await.expect("begin");
    let put = "SELECT outcome FROM paste_put('q', $1, NULL, 4, NULL)";
    writer.query_one(put, &[&hash("body")]).await.expect("put");
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.when_the_audit_waits(&writer, "COMMIT").await;
    let report = report_of(&audit.end().await, 0);
    assert_eq!(found(&report), 0, "its count is right by then: {report:#}");
    assert!(stage.store.has(&key) && stage.read("q").await.as_deref() == Some("body"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_stays_locked_is_undecided_and_hides_no_other() {
    let stage = Stage::new().await;
    for code in ["a", "b", "c"] {
        stage.put(code, code, Never).await;
    }
    stage.store.age(OLD);
    stage.run_sql("UPDATE content SET ref_count = 3").await;
    let other = connect(&stage.database_url).await;
    let lock = "BEGIN; SELECT FROM content WHERE content_hash =
                (SELECT content_hash FROM content ORDER BY 1 OFFSET 1 LIMIT 1) FOR UPDATE";
    other.batch_execute(lock).await.expect("lock");
    let report = stage.audited(1, &REPAIR_MOST).await;
    assert_eq!((&report["repaired"], &report["undecided"]), (&2.into(), &1.into()));
    other.batch_execute("ROLLBACK").await.expect("roll back");
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_without_a_content_row_are_named_and_left_alone() {
    let stage = Stage::new().await;
    for code in ["a", "b", "c"] {
        stage.put(code, "body", In(3600.0)).await;
    }
    stage.run_sql("DELETE FROM content").await;
    let report = stage.audited(1, &["--repair"]).await;
    let finding = &report["findings"][0];
    assert_eq!(
        (&finding["kind"], &finding["live_pastes"]),
        (&"paste_without_content".into(), &3.into())
    );
    assert_eq!(report["fresh_objects"], 1, "its object may still be needed");
    assert_eq!(stage.count("SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL").await, 3);
}

/// The writer has locked one row and then needs another; the audit locks them in the order of their
/// hashes.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_locks_several_content_rows_is_never_the_victim_of_a_recount() {
    let stage = Stage::new().await;
    for code in ["a", "b"] {
        stage.put(code, code, Never).await;
    }
    stage.run_sql("UPDATE content SET ref_count = 3").await;
    let lock = |order: &str| {
        format!("SELECT FROM content ORDER BY content_hash {order} LIMIT 1 FOR UPDATE")
    };
    let writer = connect(&stage.database_url).await;
    // Longer than the audit waits, so the audit gives up before Postgres looks for a deadlock.
    writer.batch_execute("BEGIN; SET LOCAL deadlock_timeout = '30s'").await.expect("begin");
    writer.batch_execute(&lock("DESC")).await.expect("the last");
    let audit = stage.audit(&REPAIR_MOST).start();
    // It gets the first row when the audit has released it.
    stage.when_the_audit_waits(&writer, &format!("{}; COMMIT", lock("ASC"))).await;
    report_of(&audit.end().await, 0);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_takes_too_long_is_undecided_and_hides_no_other() {
    let stage = Stage::new().await;
    for code in ["a", "b", "c"] {
        stage.put(code, code, Never).await;
    }
    stage
        .run_sql(&format!(
            "UPDATE content SET ref_count = 3;
             CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE query_canceled;
             END $$;
             CREATE TRIGGER slow BEFORE UPDATE ON content FOR EACH ROW
             WHEN (OLD.content_hash = '\\x{}') EXECUTE FUNCTION slow()",
            hex(&hash("b"))
        ))
        .await;
    let report = stage.audited(1, &REPAIR_MOST).await;
    assert_eq!((&report["repaired"], &report["undecided"]), (&2.into(), &1.into()));
}
