//! What keeps an audit from doing harm: the binding, the brake, the rights.

use crate::{
    stage::{OLD, Stage, names},
    support::*,
};

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_max_delete_objects_are_deleted_and_it_says_how_to_go_on() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    for n in 0..30 {
        stage.store.put(&format!("orphan/{n:02}"), 4, OLD);
    }
    stage.run_sql("DELETE FROM pastes WHERE short_code IN ('p1', 'p2', 'p3')").await;
    let report = stage.audited(1, &["--repair", "--max-delete", "12"]).await;
    assert_eq!((&report["orphans"], &report["objects_deleted"]), (&30.into(), &12.into()));
    assert_eq!((&report["beyond_max_delete"], &report["repaired"]), (&21.into(), &12.into()));
    assert_eq!((stage.store.len(), stage.sentinels().await), (118, 12));
    let text = stage.world.program("cleanupctl").args(&["audit", "--repair", "--max-delete", "0"]);
    let text = text.env("AWS_ENDPOINT_URL", &stage.store.url).output().await;
    assert_eq!(text.code(), 1);
    assert!(
        text.stdout().contains("21 were not deleted because of --max-delete"),
        "{}",
        text.stdout()
    );
    let rest = stage.audited(0, &["--repair"]).await;
    assert_eq!((&rest["objects_deleted"], stage.store.len()), (&21.into(), 97));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_the_store_refuses_to_delete_is_named_and_found_again() {
    let stage = Stage::new().await;
    for key in ["a", "held", "z"] {
        stage.store.put(key, 4, OLD);
    }
    stage.store.lock("held");
    for found in [3, 1] {
        let report = stage.audited(1, &["--repair"]).await;
        assert_eq!((&report["orphans"], &report["repaired"]), (&found.into(), &(found - 1).into()));
        let left = report["findings"].as_array().expect("findings").iter();
        let left: Vec<_> = left.filter(|finding| finding["repaired"] == false).collect();
        assert_eq!((left.len(), &left[0]["key"]), (1, &"held".into()));
        assert!(left[0]["remedy"].to_string().contains("ObjectLocked"), "{}", left[0]);
    }
    stage.store.lock("nothing");
    assert_eq!(stage.audited(0, &["--repair"]).await["repaired"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_bucket_or_prefix_than_the_databases_is_refused() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    let wrong = stage.audit(&["--repair"]).env("S3_BUCKET", "another").output().await;
    wrong.assert_refused(1, &["belongs to bucket", &stage.bucket, "another"]);
    let wrong = stage.audit(&["--repair"]).env("CLEANUP_S3_PREFIX", "x/").output().await;
    wrong.assert_refused(1, &["belongs to bucket", "prefix \"x/\""]);
    assert_eq!(stage.store.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_bound_to_no_bucket_is_refused_unless_there_is_nothing_at_all() {
    let stage = Stage::new().await;
    stage.run_sql("UPDATE cleanup_fleet SET bucket = NULL, prefix = NULL").await;
    assert_eq!(stage.audited(0, &["--repair"]).await["objects"], 0);
    stage.store.put("somebody's", 4, OLD);
    let refused = stage.audit(&["--repair"]).output().await;
    refused.assert_refused(1, &["not bound to a bucket", "the first run of a worker binds it"]);
    stage.store.remove("somebody's");
    stage.run_sql("INSERT INTO content (content_hash, s3_key) VALUES ('x', 'x')").await;
    stage.audit(&[]).output().await.assert_refused(1, &["not bound to a bucket"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_under_the_prefix_is_looked_at() {
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
async fn without_the_role_it_says_which_one_is_missing() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage.store.put("orphan", 4, OLD);
    let watchdog = stage.audit(&[]).env("DATABASE_URL", &stage.watchdog_url).output().await;
    assert_eq!(watchdog.code(), 1);
    assert!(watchdog.stderr().contains("cleanup_auditor"), "{}", watchdog.stderr());
    // A worker may read what it needs, but keeps no sentinels.
    let worker = stage.audit(&["--repair"]).env("DATABASE_URL", &stage.worker_url()).output().await;
    assert_eq!(worker.code(), 1);
    assert!(worker.stderr().contains("cleanup_auditor"), "{}", worker.stderr());
    assert!(stage.store.has("orphan"));
}
