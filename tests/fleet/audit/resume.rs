//! An audit that stops early prints the command that resumes it, and nothing is left out.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    audit::stage::{OLD, Stage, names, report_of},
    support::{connect, memory_s3::Call, process::Signal},
};

const DISCONNECT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND application_name = 'cleanupctl audit'";

/// 5,000 objects with orphans everywhere between them, and some wrong counts.
async fn stage() -> (Stage, BTreeSet<String>) {
    let stage = Stage::new().await;
    stage.fill(5000).await;
    let orphans = (0..256).map(|n| format!("{n:02x}/orphan"));
    let orphans: BTreeSet<String> = orphans.collect();
    orphans.iter().for_each(|key| stage.store.put(key, 4, OLD));
    stage.run_sql("UPDATE content SET ref_count = 2 WHERE content_hash < '\\x10'").await;
    (stage, orphans)
}

/// Runs the command that an audit printed.
async fn resume(stage: &Stage, report: &Value) -> Value {
    let command = report["resume_command"].as_str().expect("a command");
    let mut words = command.split(' ');
    assert_eq!((words.next(), words.next()), (Some("cleanupctl"), Some("audit")), "{command}");
    let words: Vec<&str> = words.chain(["--list", "1000"]).collect();
    stage.audit(&words).output().await.json()
}

/// Asserts that the two audits together checked everything and found everything exactly once.
fn assert_whole(first: &Value, second: &Value, orphans: &BTreeSet<String>, wrong: u64) {
    let (one, two) = (names(first, "orphan"), names(second, "orphan"));
    assert_eq!(one.union(&two).cloned().collect::<BTreeSet<_>>(), *orphans);
    assert!(one.is_disjoint(&two));
    let sum = |name: &str| first[name].as_u64().unwrap_or(0) + second[name].as_u64().unwrap_or(0);
    assert_eq!((sum("objects"), sum("content_rows"), sum("wrong_counts")), (5256, 5000, wrong));
    assert_eq!((&first["complete"], &second["complete"]), (&false.into(), &true.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_audit_and_the_one_that_resumes_cover_everything() {
    let (stage, orphans) = stage().await;
    let wrong = "SELECT count(*) FROM content WHERE ref_count = 2";
    let wrong = stage.count(wrong).await.unsigned_abs();
    for signal in [Signal::INT, Signal::TERM] {
        stage.store.hold(Call::List, 3);
        let audit = stage.audit(&["--list", "1000"]).start();
        stage.store.held().await;
        audit.signal(signal);
        let mut audit = audit;
        audit.until_it_logs("finishing what is in progress").await;
        stage.store.let_go();
        let first = report_of(&audit.end().await, 3);
        assert_eq!(first["stopped_because"], "signal");
        assert_eq!(first["objects"], 3000, "it finished its page");
        let second = resume(&stage, &first).await;
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
    audit.until_it_logs("finishing what is in progress").await;
    audit.signal(Signal::INT);
    let first = report_of(&audit.end().await, 3);
    stage.store.let_go();
    assert_eq!(first["objects"], 3000);
    let second = resume(&stage, &first).await;
    assert_whole(&first, &second, &orphans, wrong.unsigned_abs());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_store_ends_the_audit_with_its_findings_and_the_command_to_resume() {
    let (stage, orphans) = stage().await;
    let wrong = stage.count("SELECT count(*) FROM content WHERE ref_count = 2").await;
    stage.store.hold(Call::List, 3);
    let audit = stage.audit(&["--list", "1000"]).env("CLEANUP_S3_DEADLINE", "1s").start();
    stage.store.held().await;
    stage.store.set_unavailable(true);
    stage.store.let_go();
    let ended = audit.end().await;
    stage.store.set_unavailable(false);
    let first = report_of(&ended, 1);
    assert_eq!(first["stopped_because"], "failed");
    assert!(first["error"].as_str().expect("an error").contains("S3 is unavailable"));
    let second = resume(&stage, &first).await;
    assert_whole(&first, &second, &orphans, wrong.unsigned_abs());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_to_postgres_the_audit_reconnects_and_leaves_nothing_out() {
    let (stage, orphans) = stage().await;
    for walk in 2..5 {
        stage.store.hold(Call::List, walk);
        let audit = stage.audit(&["--list", "1000"]).start();
        stage.store.held().await;
        stage.run_sql(DISCONNECT).await;
        stage.store.let_go();
        let report = report_of(&audit.end().await, 1);
        assert_eq!(names(&report, "orphan"), orphans);
        assert_eq!((&report["objects"], &report["content_rows"]), (&5256.into(), &5000.into()));
        assert_eq!((&report["orphans"], &report["complete"]), (&256.into(), &true.into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_can_resume_within_the_counts_and_within_the_pastes() {
    let (stage, _) = stage().await;
    let report = stage.audited(1, &["--after", "counts:08", "--list", "0"]).await;
    let rest = "SELECT count(*) FROM content WHERE content_hash > '\\x08'";
    assert_eq!(report["content_rows"], stage.count(rest).await);
    assert_eq!((&report["objects"], &report["pastes"]), (&5256.into(), &5000.into()));
    let wrong = "SELECT count(*) FROM content WHERE content_hash > '\\x08' AND ref_count = 2";
    assert_eq!(report["wrong_counts"], stage.count(wrong).await);
    let report = stage.audited(1, &["--after", "pastes:80", "--list", "0"]).await;
    let rest = "SELECT count(*) FROM pastes WHERE content_hash > '\\x80'";
    assert_eq!(
        (&report["content_rows"], &report["pastes"]),
        (&0.into(), &stage.count(rest).await.into())
    );
    let wrong = stage.audit(&["--after", "nonsense"]).output().await;
    assert_eq!(wrong.code(), 2, "{}", wrong.stderr());
}

/// Returns the report of a repair that was stopped at this page of the bucket.
async fn stopped_repair(stage: &Stage, page: usize) -> Value {
    stage.store.hold(Call::List, page);
    let mut audit = stage.audit(&["--repair", "--list", "1000"]).start();
    stage.store.held().await;
    audit.signal(Signal::TERM);
    audit.until_it_logs("finishing what is in progress").await;
    stage.store.let_go();
    report_of(&audit.end().await, 3)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_is_interrupted_has_deleted_nothing_and_resuming_finds_it_again() {
    let (stage, orphans) = stage().await;
    let first = stopped_repair(&stage, 3).await;
    assert_eq!((stage.store.len(), stage.sentinels().await), (5256, 0));
    assert_eq!((&first["position"], &first["objects"]), (&"objects:".into(), &3000.into()));
    let some = names(&first, "orphan");
    assert!(some.len() > 100 && some.is_subset(&orphans) && some != orphans);
    assert_eq!(first["repaired"], first["wrong_counts"], "counts are corrected at once");
    let findings = first["findings"].to_string();
    assert!(findings.contains("resuming finds it again"), "{findings}");
    let second = resume(&stage, &first).await;
    assert_eq!(names(&second, "orphan"), orphans);
    assert_eq!((&second["objects_deleted"], &second["complete"]), (&256.into(), &true.into()));
    assert_eq!((stage.store.len(), stage.sentinels().await), (5000, 256));
    let recorded = "SELECT objects = 5256 AND orphans = 256 AND findings_left = 0 AND complete
                    FROM cleanup_audits ORDER BY id DESC LIMIT 1";
    stage.until("each is counted once", recorded).await;
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_without_anything_to_delete_resumes_where_it_stopped() {
    let stage = Stage::new().await;
    stage.fill(3000).await;
    stage.store.put("ff/orphan", 4, OLD);
    let first = stopped_repair(&stage, 2).await;
    let position = first["position"].as_str().expect("a position");
    assert!(position.len() > "objects:".len() + 40, "{position}");
    let second = resume(&stage, &first).await;
    assert_eq!((&second["objects"], &second["objects_deleted"]), (&1001.into(), &1.into()));
}

/// A thousand are reported and more are being checked when the connection is lost and the page repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_repeated_reports_no_missing_object_twice() {
    let stage = Stage::new().await;
    stage.fill(1500).await;
    stage.keys().await.iter().for_each(|key| stage.store.remove(key));
    stage.store.hold(Call::Probe, 1200);
    let audit = stage.audit(&[]).start();
    stage.store.held().await;
    stage.run_sql(DISCONNECT).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert_eq!((&report["missing_objects"], &report["complete"]), (&1500.into(), &true.into()));
}

/// Two hundred are queued and another transaction has locked one of the rest when the connection is
/// lost and the page repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_repeated_queues_nothing_twice() {
    let stage = Stage::new().await;
    stage.fill(250).await;
    stage.run_sql("DELETE FROM pastes").await;
    let other = connect(&stage.database_url).await;
    let lock = "BEGIN; SELECT FROM content ORDER BY content_hash DESC LIMIT 1 FOR UPDATE";
    other.batch_execute(lock).await.expect("lock");
    let audit = stage.audit(&["--repair", "--override-brake"]).start();
    stage.when_the_audit_waits(&other, &format!("{DISCONNECT}; ROLLBACK")).await;
    let report = report_of(&audit.end().await, 0);
    assert_eq!((&report["unreferenced_content"], &report["repaired"]), (&250.into(), &250.into()));
    assert_eq!((&report["objects_deleted"], stage.store.len()), (&250.into(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_during_the_deletes_leaves_nothing_out() {
    let stage = Stage::new().await;
    stage.fill(400).await;
    stage.run_sql("DELETE FROM pastes WHERE content_hash < '\\x80'").await;
    (0..50).for_each(|n| stage.store.put(&format!("orphan/{n}"), 4, OLD));
    let pastes = stage.count("SELECT count(*) FROM pastes").await;
    stage.store.hold(Call::Delete, 1);
    let audit = stage.audit(&["--repair", "--override-brake"]).start();
    stage.store.held().await;
    stage.run_sql(DISCONNECT).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 0);
    assert_eq!((&report["orphans"], &report["repaired"]), (&50.into(), &(450 - pastes).into()));
    assert_eq!(stage.store.len() as i64, pastes);
    stage.assert_nothing_wrong().await;
}

/// Killed between the content row and its object: the row is a sentinel by then, which has no count.
#[tokio::test(flavor = "multi_thread")]
async fn resuming_within_the_counts_finds_the_object_that_a_killed_repair_has_left() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage.run_sql("DELETE FROM pastes WHERE short_code = 'p1'").await;
    let resume = ["--repair", "--after", "counts:00"];
    stage.store.hold(Call::Delete, 1);
    let audit = stage.audit(&resume).start();
    stage.store.held().await;
    audit.signal(Signal::KILL);
    audit.end().await;
    assert_eq!((stage.store.len(), stage.sentinels().await), (10, 1));
    stage.store.hold_no_more();
    let report = stage.audited(0, &resume).await;
    assert_eq!((&report["orphans"], &report["repaired"]), (&1.into(), &1.into()));
    assert_eq!(stage.store.len(), 9);
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_bound_to_another_bucket_during_the_audit_loses_no_object() {
    let (stage, _) = stage().await;
    stage.store.hold(Call::List, 2);
    let audit = stage.audit(&["--repair"]).start();
    stage.store.held().await;
    stage.run_sql("UPDATE cleanup_fleet SET bucket = 'another'").await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert!(report["error"].to_string().contains("belongs to bucket"), "{report:#}");
    assert_eq!((stage.store.len(), stage.sentinels().await), (5256, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_belongs_to_another_bucket_after_a_reconnect_ends_the_audit() {
    let (stage, _) = stage().await;
    stage.store.hold(Call::List, 2);
    let audit = stage.audit(&["--repair"]).start();
    stage.store.held().await;
    stage
        .run_sql(
            "UPDATE cleanup_fleet SET bucket = 'another';
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'cleanupctl audit'",
        )
        .await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert!(report["error"].to_string().contains("belongs to bucket"), "{report:#}");
    assert_eq!((stage.store.len(), stage.sentinels().await), (5256, 0));
}
