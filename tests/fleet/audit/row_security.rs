//! Rows that a row-level security policy hides: a program that cannot see all references fails and
//! deletes nothing.

use crate::{
    audit::stage::{OLD, Stage},
    support::*,
};

const REMEDY: &str = "row-level security hides rows from this login";

/// Ten pastes, and a policy of the table's owner that shows the fleet some of them, or none.
async fn stage(policy: &str) -> Stage {
    let stage = Stage::new().await;
    stage.fill(10).await;
    stage.store.put("orphan", 4, OLD);
    stage.run_sql(&format!("ALTER TABLE pastes ENABLE ROW LEVEL SECURITY; {policy}")).await;
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_from_which_a_policy_hides_pastes_fails_and_deletes_nothing() {
    for policy in ["", "CREATE POLICY part_of_it ON pastes USING (short_code < 'p5')"] {
        let stage = stage(policy).await;
        let ended = stage.audit(&["--repair", "--grace", "0s"]).output().await;
        assert_eq!(ended.code(), 1, "{}", ended.stdout());
        assert!(ended.stderr().contains(REMEDY), "{}", ended.stderr());
        assert_eq!(ended.json()["stopped_because"], "failed");
        assert_eq!((stage.store.len(), stage.sentinels().await), (11, 0), "nothing was deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_from_which_a_policy_hides_pastes_fails_and_deletes_nothing() {
    let stage = Stage::new().await;
    stage.put("gone", "body", Ago(60.0)).await;
    stage.put("hidden", "body", Never).await;
    stage
        .run_sql(
            "UPDATE content SET ref_count = 1;
             ALTER TABLE pastes ENABLE ROW LEVEL SECURITY;
             CREATE POLICY part_of_it ON pastes USING (short_code <> 'hidden')",
        )
        .await;
    let worker = stage.program("cleanup-worker").args(&["run"]);
    let ended = worker.env("AWS_ENDPOINT_URL", &stage.store.url).output().await;
    assert_eq!(ended.code(), 1, "{}", ended.stdout());
    assert!(ended.stderr().contains("row-level security"), "{}", ended.stderr());
    assert_eq!(stage.read("hidden").await.as_deref(), Some("body"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_bypasses_row_security_audits_as_usual() {
    let stage = stage("").await;
    let owner = stage.audit(&["--repair"]).env("DATABASE_URL", &stage.database_url);
    let ended = owner.output().await;
    assert_eq!((ended.code(), &ended.json()["repaired"]), (0, &1.into()), "{}", ended.stderr());
    assert_eq!(stage.store.len(), 10);
}
