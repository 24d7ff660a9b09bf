//! Stores whose listing deviates from that of S3.

use crate::{
    audit::stage::{OLD, Stage, found, report_of},
    support::memory_s3::Quirk,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_returns_no_tokens_is_listed_completely() {
    let stage = Stage::new().await;
    stage.fill(3500).await;
    stage.store.put("zz/orphan", 4, OLD);
    stage.store.set_quirk(Quirk::NoTokens);
    let report = stage.audited(1, &[]).await;
    assert_eq!((&report["objects"], &report["orphans"]), (&3501.into(), &1.into()));
    assert_eq!(found(&report), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_with_neither_objects_nor_a_token_that_is_not_the_last_ends_the_audit() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage.store.set_quirk(Quirk::NoTokensNoKeys);
    let ended = stage.audit(&[]).output().await;
    let report = report_of(&ended, 1);
    assert_eq!((&report["stopped_because"], found(&report)), (&"failed".into(), 0));
    assert!(
        ended.stderr().contains("neither a key nor a continuation token"),
        "{}",
        ended.stderr()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_exists_but_is_not_listed_is_not_missing() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    stage.store.set_quirk(Quirk::Unlisted("5"));
    let hidden = stage.count("SELECT count(*) FROM content WHERE s3_key LIKE '5%'").await;
    assert!(hidden > 0);
    stage.assert_nothing_wrong().await;
    let gone = stage.text("SELECT min(s3_key) FROM content WHERE s3_key LIKE '5%'").await;
    stage.store.remove(&gone.expect("a key"));
    assert_eq!(stage.audited(1, &[]).await["missing_objects"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_read_the_listing_decides() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    stage.store.set_quirk(Quirk::NoReading);
    let gone = stage.text("SELECT min(s3_key) FROM content").await;
    stage.store.remove(&gone.expect("a key"));
    let report = stage.audited(1, &[]).await;
    assert_eq!((&report["missing_objects"], found(&report)), (&1.into(), 1));
}
