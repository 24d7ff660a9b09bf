//! Tables that are not those of the paste service: every object looks like an orphan, or like
//! unreferenced content, and none is deleted.

use paste_cleanup::watchdog::totals;
use serde_json::Value;

use crate::{
    audit::stage::{OLD, Stage, names},
    support::{
        findings::{Findings, diagnose},
        *,
    },
};

const WHAT_TO_CHECK: [&str; 4] =
    ["schema, search_path, table names", "bucket", "restored copy", "--override-brake"];

/// Asserts that the brake stops a repair with these words in its reason, that nothing is deleted, and
/// that an audit without --repair warns of it.
async fn assert_braked(stage: &Stage, words: &[&str]) -> Value {
    let objects = stage.store.len();
    let rows = stage.count("SELECT count(*) FROM content").await;
    for most in ["1000", "1000000"] {
        let report = stage.audited(4, &["--repair", "--max-delete", most]).await;
        assert_eq!(report["stopped_because"], "brake");
        let reason = report["brake"].as_str().expect("a reason");
        for word in words.iter().chain(&WHAT_TO_CHECK) {
            assert!(reason.contains(word), "{word:?} is not in: {reason}");
        }
        assert_eq!((stage.store.len(), &report["objects_deleted"]), (objects, &0.into()));
        assert_eq!(stage.count("SELECT count(*) FROM content").await, rows);
    }
    let dry = stage.audited(1, &[]).await;
    let warning = dry["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("the safety brake would stop --repair: "), "{warning}");
    assert!(words.iter().all(|word| warning.contains(word)), "{warning}");
    stage.audited(4, &["--repair"]).await
}

async fn doctor(stage: &Stage) -> Findings {
    let endpoint = stage.store.url.clone();
    diagnose(stage.program("cleanupctl").env("AWS_ENDPOINT_URL", &endpoint)).await
}

/// Asserts that the doctor names the state and what to check, and does not recommend a repair.
async fn assert_doctor_warns(stage: &Stage, state: &str) {
    let findings = doctor(stage).await;
    let words = [state, "wrong tables or the wrong bucket", "schema, search_path, table names"];
    findings.assert_says("objects", "warning", &words);
    let text = findings.0.stdout();
    assert!(!text.contains("--repair"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_whose_pastes_are_in_another_table_is_not_deleted() {
    let stage = Stage::new().await;
    stage.fill(300).await;
    stage.run_sql("CREATE TABLE snippets AS TABLE pastes; TRUNCATE pastes").await;
    assert_braked(&stage, &["would delete 300 of 300 objects (100 %, limit 50 %)"]).await;
    assert_doctor_warns(&stage, "would delete 300 of 300 objects").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_set_of_tables_deletes_nothing_from_a_bucket_of_any_size() {
    for objects in [80, 1] {
        let stage = Stage::new().await;
        (0..objects).for_each(|n| stage.store.put(&format!("body/{n}"), 4, OLD));
        let all = format!("would delete {objects} of {objects} objects (100 %, limit 50 %)");
        assert_braked(&stage, &[&all]).await;
        assert_doctor_warns(&stage, &format!("would delete {objects} of {objects} objects")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_objects_may_be_deleted_and_one_more_only_with_the_flag() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    (0..11).for_each(|n| stage.store.put(&format!("orphan/{n}"), 4, OLD));
    // Too young to be deleted, but no row knows these either.
    (0..5).for_each(|n| stage.store.put(&format!("young/{n}"), 4, std::time::Duration::ZERO));
    assert_braked(&stage, &["would delete 11 of 21 objects (52 %, limit 50 %)"]).await;
    stage.store.remove("orphan/0");
    let report = stage.audited(0, &["--repair"]).await;
    assert_eq!((&report["objects_deleted"], stage.store.len()), (&10.into(), 15));
    (0..11).for_each(|n| stage.store.put(&format!("orphan/{n}"), 4, OLD));
    // --max-delete still applies.
    let args = ["--repair", "--override-brake", "--max-delete", "10"];
    assert_eq!(stage.audited(4, &args).await["beyond_max_delete"], 11);
    let report = stage.audited(0, &["--repair", "--override-brake"]).await;
    assert_eq!((&report["objects_deleted"], stage.store.len()), (&11.into(), 15));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_half_of_the_content_rows_are_deleted_only_with_the_flag() {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage
        .run_sql("DELETE FROM pastes WHERE short_code IN ('p1', 'p2', 'p3', 'p4', 'p5', 'p6')")
        .await;
    // Objects with a pending delete are known, and have no content row.
    stage
        .run_sql(
            "INSERT INTO pastes (short_code, pending_s3_key)
             SELECT 'q' || n, 'pending/' || n FROM generate_series(1, 20) n",
        )
        .await;
    (1..=20).for_each(|n| stage.store.put(&format!("pending/{n}"), 4, OLD));
    let report =
        assert_braked(&stage, &["would delete 6 of 10 content rows (60 %, limit 50 %)"]).await;
    assert_eq!(names(&report, "unreferenced_content").len(), 6);
    let report = stage.audited(0, &["--repair", "--override-brake"]).await;
    assert_eq!((&report["repaired"], stage.store.len()), (&6.into(), 24));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_paste_was_ever_erased_nothing_is_deleted_without_the_flag() {
    let stage = Stage::never_used(World::new().await).await;
    stage.fill(100).await;
    assert_eq!(stage.audited(0, &["--repair"]).await["never_erased"], true, "nothing to delete");
    stage.store.put("orphan", 4, OLD);
    assert_braked(&stage, &["no worker has erased a paste in this database yet"]).await;
    assert_doctor_warns(&stage, "no worker has erased a paste in this database yet").await;
    assert_eq!(stage.audited(0, &["--repair", "--override-brake"]).await["repaired"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_has_erased_pastes_is_recognized_after_its_claims_are_pruned() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    totals::count(&stage.watchdog_pool(), &stage.settings).await.expect("count");
    stage.run_sql("DELETE FROM deletion_claims").await; // pruned
    stage.store.put("orphan", 4, OLD);
    assert_eq!(stage.audited(0, &["--repair"]).await["repaired"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_recommends_a_repair_where_it_is_safe_and_only_there() {
    let stage = Stage::new().await;
    stage.fill(100).await;
    stage.store.put("orphan", 4, OLD);
    doctor(&stage).await.assert_says("objects", "warning", &["`cleanupctl audit --repair`"]);
    stage.run_sql("UPDATE cleanup_fleet SET prefix = 'o'").await;
    let program = stage.program("cleanupctl").env("AWS_ENDPOINT_URL", &stage.store.url);
    let findings = diagnose(program.env("CLEANUP_S3_PREFIX", "o")).await;
    findings.assert_says("objects", "warning", &["does not end in '/'"]);
    assert!(!findings.0.stdout().contains("--repair"), "{}", findings.0.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_checks_with_a_workers_login_that_may_not_read_the_totals() {
    let stage = Stage::never_used(World::new().await).await;
    stage.fill(100).await;
    stage.store.put("orphan", 4, OLD);
    let worker = stage.program("cleanupctl").env("DATABASE_URL", &stage.worker_url());
    let findings = diagnose(worker.env("AWS_ENDPOINT_URL", &stage.store.url)).await;
    findings.assert_says("objects", "warning", &["no worker has erased a paste"]);
}
