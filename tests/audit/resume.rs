//! An audit that ends early says where, and what to type to go on.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    stage::{OLD, Stage, names, report_of},
    support::{memory_s3::Call, process::Signal},
};

/// 5,000 objects with orphans all over, and some wrong counts.
async fn stage() -> (Stage, BTreeSet<String>) {
    let stage = Stage::new().await;
    stage.fill(5000).await;
    let orphans = (0..256).map(|n| format!("{n:02x}/orphan"));
    let orphans: BTreeSet<String> = orphans.collect();
    orphans.iter().for_each(|key| stage.store.put(key, 4, OLD));
    stage.run_sql("UPDATE content SET ref_count = 2 WHERE content_hash < '\\x10'").await;
    (stage, orphans)
}

/// Runs the very command that an audit printed.
async fn go_on(stage: &Stage, report: &Value) -> Value {
    let command = report["go_on"].as_str().expect("a command");
    let mut words = command.split(' ');
    assert_eq!((words.next(), words.next()), (Some("cleanupctl"), Some("audit")), "{command}");
    let words: Vec<&str> = words.chain(["--list", "1000"]).collect();
    stage.audit(&words).output().await.json()
}

/// Together they have seen and found everything, once.
fn assert_whole(first: &Value, second: &Value, orphans: &BTreeSet<String>, wrong: u64) {
    let (one, two) = (names(first, "orphan"), names(second, "orphan"));
    assert_eq!(one.union(&two).cloned().collect::<BTreeSet<_>>(), *orphans);
    assert!(one.is_disjoint(&two));
    let sum = |name: &str| first[name].as_u64().unwrap_or(0) + second[name].as_u64().unwrap_or(0);
    assert_eq!((sum("objects"), sum("content_rows"), sum("wrong_counts")), (5256, 5000, wrong));
    assert_eq!((&first["complete"], &second["complete"]), (&false.into(), &true.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_audit_and_the_one_that_goes_on_cover_everything() {
    let (stage, orphans) = stage().await;
    let wrong = "SELECT count(*) FROM content WHERE ref_count = 2";
    let wrong = stage.count(wrong).await.unsigned_abs();
    for signal in [Signal::INT, Signal::TERM] {
        stage.store.hold(Call::List, 3);
        let audit = stage.audit(&["--list", "1000"]).start();
        stage.store.held().await;
        audit.signal(signal);
        let mut audit = audit;
        audit.until_it_says("finishing what is open").await;
        stage.store.let_go();
        let first = report_of(&audit.end().await, 3);
        assert_eq!(first["stopped_because"], "signal");
        assert_eq!(first["objects"], 3000, "it finished its page");
        let second = go_on(&stage, &first).await;
        assert_whole(&first, &second, &orphans, wrong);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_does_not_wait_for_the_page_and_nothing_is_left_out() {
    let (stage, orphans) = stage().await;
    let wrong = stage.count("SELECT count(*) FROM content WHERE ref_count = 2").await;
    stage.store.hold(Call::List, 4);
    let mut audit = stage.audit(&["--list", "1000"]).start();
    stage.store.held().await;
    audit.signal(Signal::INT);
    audit.until_it_says("finishing what is open").await;
    audit.signal(Signal::INT);
    let first = report_of(&audit.end().await, 3);
    stage.store.let_go();
    assert_eq!(first["objects"], 3000);
    let second = go_on(&stage, &first).await;
    assert_whole(&first, &second, &orphans, wrong.unsigned_abs());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_goes_away_ends_it_with_what_was_found_and_the_way_to_go_on() {
    let (stage, orphans) = stage().await;
    let wrong = stage.count("SELECT count(*) FROM content WHERE ref_count = 2").await;
    stage.store.hold(Call::List, 3);
    let audit = stage.audit(&["--list", "1000"]).env("CLEANUP_S3_DEADLINE", "1s").start();
    stage.store.held().await;
    stage.store.away(true);
    stage.store.let_go();
    let ended = audit.end().await;
    stage.store.away(false);
    let first = report_of(&ended, 1);
    assert_eq!(first["stopped_because"], "failed");
    assert!(first["error"].as_str().expect("an error").contains("S3 does not answer"));
    let second = go_on(&stage, &first).await;
    assert_whole(&first, &second, &orphans, wrong.unsigned_abs());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_to_postgres_is_opened_anew_and_nothing_is_left_out() {
    let (stage, orphans) = stage().await;
    for walk in 2..5 {
        stage.store.hold(Call::List, walk);
        let audit = stage.audit(&["--list", "1000"]).start();
        stage.store.held().await;
        stage
            .run_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'cleanupctl audit'",
            )
            .await;
        stage.store.let_go();
        let report = report_of(&audit.end().await, 1);
        assert_eq!(names(&report, "orphan"), orphans);
        assert_eq!((&report["objects"], &report["content_rows"]), (&5256.into(), &5000.into()));
        assert_eq!((&report["orphans"], &report["complete"]), (&256.into(), &true.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_go_on_within_the_counts_and_within_the_pastes() {
    let (stage, _) = stage().await;
    let report = stage.audited(1, &["--after", "counts:08", "--list", "0"]).await;
    let rest = "SELECT count(*) FROM content WHERE content_hash > '\\x08'";
    assert_eq!(report["content_rows"], stage.count(rest).await);
    assert_eq!((&report["objects"], &report["pastes"]), (&0.into(), &5000.into()));
    let wrong = "SELECT count(*) FROM content WHERE content_hash > '\\x08' AND ref_count = 2";
    assert_eq!(report["wrong_counts"], stage.count(wrong).await);
    let report = stage.audited(0, &["--after", "pastes:80"]).await;
    let rest = "SELECT count(*) FROM pastes WHERE content_hash > '\\x80'";
    assert_eq!(
        (&report["content_rows"], &report["pastes"]),
        (&0.into(), &stage.count(rest).await.into())
    );
    let wrong = stage.audit(&["--after", "nonsense"]).output().await;
    assert_eq!(wrong.code(), 2, "{}", wrong.stderr());
}
