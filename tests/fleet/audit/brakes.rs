//! What keeps an audit from deleting the wrong objects: the bucket binding, the safety brake, the
//! rights.

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, names, report_of},
    support::{memory_s3::Call, *},
};

#[tokio::test(flavor = "multi_thread")]
async fn more_than_max_delete_is_a_brake_and_nothing_at_all_is_deleted() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    for n in 0..30 {
        stage.store.put(&format!("orphan/{n:02}"), 4, OLD);
    }
    stage.run_sql("DELETE FROM pastes WHERE short_code IN ('p1', 'p2', 'p3')").await;
    stage.run_sql("UPDATE content SET ref_count = 5 WHERE s3_key < '1'").await;
    let wrong = stage.count("SELECT count(*) FROM content WHERE ref_count = 5").await;
    for most in ["0", "12", "32"] {
        let args = ["--repair", "--max-delete", most, "--list", "100"];
        let report = stage.audited(4, &args).await;
        assert_eq!(
            (&report["stopped_because"], &report["complete"]),
            (&"brake".into(), &true.into())
        );
        assert_eq!((&report["orphans"], &report["unreferenced_content"]), (&30.into(), &3.into()));
        assert_eq!(
            (&report["beyond_max_delete"], &report["objects_deleted"]),
            (&33.into(), &0.into())
        );
        assert_eq!((stage.store.len(), stage.sentinels().await), (130, 0));
        let left = report["findings"].as_array().expect("findings").iter();
        let left = left.filter(|finding| finding["remedy"].to_string().contains("--max-delete"));
        assert_eq!(left.count(), 33, "each of them has the reason: {report:#}");
    }
    assert!(wrong > 0);
    let wrong = "SELECT count(*) FROM content WHERE ref_count = 5 AND content_hash IN
                 (SELECT content_hash FROM pastes)";
    assert_eq!(stage.count(wrong).await, 0, "counts were corrected anyway");
    let text = stage.world.program("cleanupctl").args(&["audit", "--repair", "--max-delete", "32"]);
    let text = text.env("AWS_ENDPOINT_URL", &stage.store.url).output().await;
    assert_eq!(text.code(), 4);
    let expected =
        "safety brake: nothing was deleted: would delete 33 objects (limit --max-delete 32)";
    assert!(text.stdout().contains(expected), "{}", text.stdout());
    let rest = stage.audited(0, &["--repair", "--max-delete", "33"]).await;
    assert_eq!((&rest["objects_deleted"], stage.store.len()), (&33.into(), 97));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn findings_beyond_the_capacity_of_the_queue_are_only_counted() {
    let stage = Stage::new().await;
    stage.fill(5000).await;
    for n in 0..2500 {
        stage.store.put(&format!("orphan/{n:04}"), 4, OLD);
    }
    let report = stage.audited(4, &["--repair", "--max-delete", "10", "--list", "5"]).await;
    assert_eq!((&report["orphans"], &report["orphan_bytes"]), (&2500.into(), &10_000.into()));
    assert_eq!(report["findings"].as_array().expect("findings").len(), 5);
    assert_eq!((stage.store.len(), stage.sentinels().await), (7500, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_fleet_is_paused_nothing_is_repaired_and_the_reason_is_named() {
    let stage = Stage::new().await;
    stage.store.put("orphan", 4, OLD);
    let pause = "UPDATE cleanup_fleet SET paused_at = now(), pause_reason = 'restoring a backup'";
    stage.run_sql(pause).await;
    let refused = stage.audit(&["--repair"]).output().await;
    refused.assert_refused(1, &["restoring a backup", "`cleanupctl resume`", "--repair"]);
    assert_eq!(stage.audited(1, &[]).await["orphans"], 1, "without --repair it runs");
    // Paused between the walks and the deletions.
    stage.run_sql("UPDATE cleanup_fleet SET paused_at = NULL").await;
    stage.store.hold(Call::Probe, 1);
    let audit = stage.audit(&REPAIR_MOST).start();
    stage.store.held().await;
    stage.run_sql(pause).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert!(report["error"].to_string().contains("restoring a backup"), "{report:#}");
    assert_eq!((&report["orphans"], &report["repaired"]), (&1.into(), &0.into()));
    assert!(stage.store.has("orphan") && stage.sentinels().await == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_the_store_refuses_to_delete_is_named_and_found_again() {
    let stage = Stage::new().await;
    for key in ["a", "held", "z"] {
        stage.store.put(key, 4, OLD);
    }
    stage.store.lock("held");
    for found in [3, 1] {
        let report = stage.audited(1, &REPAIR_MOST).await;
        assert_eq!((&report["orphans"], &report["repaired"]), (&found.into(), &(found - 1).into()));
        let left = report["findings"].as_array().expect("findings").iter();
        let left: Vec<_> = left.filter(|finding| finding["repaired"] == false).collect();
        assert_eq!((left.len(), &left[0]["key"]), (1, &"held".into()));
        assert!(left[0]["remedy"].to_string().contains("ObjectLocked"), "{}", left[0]);
    }
    stage.store.lock("nothing");
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_or_prefix_that_is_not_the_databases_is_refused() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    let wrong = stage.audit(&["--repair"]).env("S3_BUCKET", "another").output().await;
    wrong.assert_refused(1, &["belongs to bucket", &stage.bucket, "another"]);
    let wrong = stage.audit(&["--repair"]).env("CLEANUP_S3_PREFIX", "x/").output().await;
    wrong.assert_refused(1, &["belongs to bucket", "prefix \"x/\""]);
    assert_eq!(stage.store.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_bound_to_no_bucket_is_refused_unless_bucket_and_tables_are_empty() {
    let stage = Stage::new().await;
    stage.run_sql("UPDATE cleanup_fleet SET bucket = NULL, prefix = NULL").await;
    assert_eq!(stage.audited(0, &["--repair"]).await["objects"], 0);
    stage.store.put("another/key", 4, OLD);
    let refused = stage.audit(&["--repair"]).output().await;
    refused.assert_refused(1, &["not bound to a bucket", "the first run of a worker binds it"]);
    stage.store.remove("another/key");
    stage.run_sql("INSERT INTO content (content_hash, s3_key) VALUES ('x', 'x')").await;
    stage.audit(&[]).output().await.assert_refused(1, &["not bound to a bucket"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_objects_under_the_prefix_are_checked() {
    let stage = Stage::new().await;
    stage.run_sql("UPDATE cleanup_fleet SET prefix = 'pastes/'").await;
    for (code, key) in [("in", "pastes/a"), ("out", "elsewhere/b")] {
        stage.put_row(code, &hash(code), Some(key), 4, Never).await;
        stage.store.put(key, 4, OLD);
    }
    for key in ["pastes/orphan", "not/ours", "zzz"] {
        stage.store.put(key, 4, OLD);
    }
    stage.store.remove("elsewhere/b");
    let audit = stage.audit(&["--repair"]).env("CLEANUP_S3_PREFIX", "pastes/").output().await;
    let report = audit.json();
    assert_eq!((audit.code(), &report["objects"]), (0, &2.into()), "{report:#}");
    assert_eq!((&report["outside_prefix"], &report["repaired"]), (&1.into(), &1.into()));
    assert_eq!(names(&report, "orphan"), ["pastes/orphan".to_string()].into());
    assert_eq!(stage.keys().await, ["not/ours", "pastes/a", "zzz"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_other_databases_may_share_is_reported_as_a_warning() {
    let stage = Stage::new().await;
    for (prefix, warnings) in [("pastes", 1), ("pastes/", 0), ("", 0)] {
        stage.run_sql(&format!("UPDATE cleanup_fleet SET prefix = '{prefix}'")).await;
        let audit = stage.audit(&[]).env("CLEANUP_S3_PREFIX", prefix).output().await;
        let found = audit.json()["warnings"].clone();
        assert_eq!(found.as_array().expect("warnings").len(), warnings, "{found:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_repaired_under_a_prefix_that_may_match_the_keys_of_another_database() {
    let stage = Stage::new().await;
    for n in 0..40 {
        let key = format!("a/{n}");
        stage.put_row(&key, &hash(&key), Some(&key), 4, Never).await;
        stage.store.put(&key, 4, OLD);
    }
    // The live objects of another database, whose prefix is "ab/".
    (0..30).for_each(|n| stage.store.put(&format!("ab/{n}"), 4, OLD));
    stage.run_sql("UPDATE cleanup_fleet SET prefix = 'a'").await;
    let audit = |args: &[&str]| stage.audit(args).env("CLEANUP_S3_PREFIX", "a");
    let words = ["s3.prefix \"a\"", "does not end in '/'", "\"a/\"", "--override-brake"];
    audit(&["--repair"]).output().await.assert_refused(2, &words);
    assert_eq!((stage.store.len(), stage.sentinels().await), (70, 0));
    assert_eq!(report_of(&audit(&[]).output().await, 1)["orphans"], 30, "without --repair it runs");
    let report = report_of(&audit(&["--repair", "--override-brake"]).output().await, 0);
    assert_eq!((&report["repaired"], stage.store.len()), (&30.into(), 40));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_the_role_gets_an_error_that_names_the_role() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage.store.put("orphan", 4, OLD);
    let watchdog = stage.audit(&[]).env("DATABASE_URL", &stage.watchdog_url).output().await;
    assert_eq!(watchdog.code(), 1);
    assert!(watchdog.stderr().contains("cleanup_auditor"), "{}", watchdog.stderr());
    // A worker may read the tables, but not insert sentinels.
    let worker = stage.audit(&["--repair"]).env("DATABASE_URL", &stage.worker_url()).output().await;
    assert_eq!(worker.code(), 1);
    assert!(worker.stderr().contains("cleanup_auditor"), "{}", worker.stderr());
    assert!(stage.store.has("orphan"));
}
