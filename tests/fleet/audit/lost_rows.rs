//! Content rows of live pastes that another program has deleted: the bodies of these pastes are among
//! the orphans, and no orphan is deleted until the rows are restored or the pastes have expired.

use crate::{
    audit::stage::{OLD, Stage, report_of},
    support::{World, findings::diagnose, memory_s3::Call},
};

const LOSE_ONE: &str = "
    CREATE TABLE kept AS SELECT * FROM content ORDER BY content_hash DESC LIMIT 1;
    DELETE FROM content WHERE content_hash IN (SELECT content_hash FROM kept)";
const RESTORE: &str = "INSERT INTO content SELECT * FROM kept";

/// 200 pastes, an orphan, and a paste whose content row was deleted by hand.
async fn stage() -> Stage {
    let stage = Stage::new().await;
    stage.fill(200).await;
    stage.store.put("0/orphan", 1, OLD);
    stage.run_sql(LOSE_ONE).await;
    stage
}

fn assert_braked(report: &serde_json::Value) {
    let brake = report["brake"].as_str().expect("a reason");
    for words in ["1 live paste has no content row", "restore", "expire"] {
        assert!(brake.contains(words), "{words:?} is not in: {brake}");
    }
    assert_eq!((&report["orphans"], &report["objects_deleted"]), (&2.into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_orphan_is_deleted_while_a_live_paste_has_no_content_row() {
    let stage = stage().await;
    let dry = stage.audited(1, &[]).await;
    let warning = dry["warnings"][0].as_str().expect("a warning");
    assert!(warning.contains("1 live paste has no content row"), "{warning}");
    assert_braked(&stage.audited(4, &["--repair"]).await);
    assert_braked(&stage.audited(4, &["--repair", "--override-brake"]).await);
    assert_eq!(stage.store.len(), 201);

    stage.run_sql(RESTORE).await;
    assert_eq!(stage.audited(0, &["--repair"]).await["objects_deleted"], 1);
    assert_eq!(stage.store.len(), 200, "only the orphan is gone");
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_resumes_behind_the_pastes_knows_that_a_content_row_is_missing() {
    let stage = stage().await;
    for after in ["objects:", "pastes:ff"] {
        assert_braked(&stage.audited(4, &["--repair", "--after", after]).await);
    }
    assert_eq!(stage.store.len(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_row_that_is_deleted_during_the_audit_keeps_its_object() {
    let stage = Stage::new().await;
    stage.fill(200).await;
    // The pastes were checked; the content keys are read with the first page of the bucket.
    stage.store.hold(Call::List, 1);
    let audit = stage.audit(&["--repair"]).start();
    stage.store.held().await;
    stage.run_sql(LOSE_ONE).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 4);
    let brake = report["brake"].to_string();
    assert!(brake.contains("1 live paste has no content row"), "{brake}");
    assert_eq!(stage.store.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_brake_names_every_reason() {
    let stage = Stage::never_used(World::new().await).await;
    stage.fill(200).await;
    stage.run_sql(LOSE_ONE).await;
    let brake = stage.audited(4, &["--repair"]).await["brake"].to_string();
    for words in ["no worker has erased a paste", "1 live paste has no content row"] {
        assert!(brake.contains(words), "{words:?} is not in: {brake}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_paste_without_a_content_row_keeps_no_orphan() {
    let stage = stage().await;
    let expire = "UPDATE pastes SET expires_at = now() - interval '1 minute'
                  WHERE content_hash IN (SELECT content_hash FROM kept)";
    stage.run_sql(expire).await;
    assert_eq!(stage.audited(1, &["--repair"]).await["objects_deleted"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_recommends_no_repair_while_a_live_paste_has_no_content_row() {
    let stage = stage().await;
    let endpoint = stage.store.url.clone();
    let findings = diagnose(stage.program("cleanupctl").env("AWS_ENDPOINT_URL", &endpoint)).await;
    let words = ["1 missing content row", "1 live paste has no content row", "restore"];
    findings.assert_says("objects", "warning", &words);
    assert!(!findings.0.stdout().contains("--repair"), "{}", findings.0.stdout());
}
