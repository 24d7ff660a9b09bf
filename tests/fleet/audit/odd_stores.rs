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

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_delete_objects_has_its_orphans_deleted_one_by_one() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    for n in 0..5 {
        stage.store.put(&format!("zz/orphan{n}"), 4, OLD);
    }
    stage.store.set_quirk(Quirk::NoBulk);
    let report = stage.audited(0, &["--repair"]).await;
    assert_eq!((&report["objects_deleted"], stage.store.len()), (&5.into(), 10));
}

/// XML cannot express every key, so a listing that is not encoded may be no XML at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_url_encoding_is_audited_and_no_listed_key_is_mistaken_for_another() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    let odd = ["a+b%2Bc", "d\u{1}e", "f\u{fffe}g", "h i&<j>"];
    for (n, key) in odd.iter().enumerate() {
        let insert = "INSERT INTO content (content_hash, s3_key, size_bytes, ref_count, created_at)
                      VALUES (sha256($1::text::bytea), $1, 1, 1, now() - interval '30 days')";
        stage.db.execute(insert, &[key]).await.expect("content");
        let insert = "INSERT INTO pastes (short_code, content_hash, expires_at)
                      VALUES ($1, sha256($2::text::bytea), NULL)";
        stage.db.execute(insert, &[&format!("odd{n}"), key]).await.expect("paste");
        stage.store.put(key, 1, OLD);
    }
    stage.store.put("orphan\u{2}", 4, OLD);
    stage.store.put("orphan+%41", 4, OLD);
    stage.store.set_quirk(Quirk::NoEncoding);
    let report = stage.audited(0, &["--repair"]).await;
    assert_eq!((&report["missing_objects"], &report["orphans"]), (&0.into(), &1.into()));
    assert_eq!(report["unchecked_objects"], 3, "two of them have content, one may be an orphan");
    assert!(!stage.store.has("orphan+%41"), "it is an orphan");
    assert!(stage.store.has("orphan\u{2}"), "its key was not listed");
    assert!(odd.iter().all(|key| stage.store.has(key)), "each has a content row");
    // A store that encodes lists the rest.
    stage.store.set_quirk(Quirk::NoReading);
    let report = stage.audited(0, &["--repair"]).await;
    assert_eq!((&report["orphans"], &report["unchecked_objects"]), (&1.into(), &0.into()));
    assert!(!stage.store.has("orphan\u{2}"));
}
