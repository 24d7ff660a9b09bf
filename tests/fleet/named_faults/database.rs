//! Faults of the database: a missing schema or index, a blocking constraint, a long transaction.

use super::{assert_done, doctor};
use crate::support::{
    findings::{diagnose, diagnose_with},
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_not_migrated_is_a_failure_with_the_command() {
    let world = World::new().await;
    let (url, _empty) = empty_database().await;
    let program = || world.program("cleanupctl").env("DATABASE_URL", &url);
    let findings = diagnose(program()).await;
    let needing = [
        "rights",
        "indexes",
        "blockers",
        "owner triggers",
        "tables",
        "content rows",
        "times",
        "bucket binding",
        "objects",
        "pause",
        "claims",
        "dead letters",
        "unclaimable",
    ];
    findings.assert_only(1, &[&["schema", "durability"][..], &needing].concat());
    findings.assert_says("schema", "failure", &["not prepared", "run `cleanupctl migrate`"]);
    for check in needing {
        findings.assert_says(check, "left_out", &["schema"]);
    }
    assert_done(&program().args(&["migrate"]).output().await);
    diagnose(program()).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_index_is_a_failure_until_migrate_has_rebuilt_it() {
    let world = World::new().await;
    world.run_sql("DROP INDEX pastes_due_idx").await;
    let findings = doctor(&world).await;
    findings.assert_only(1, &["durability", "indexes"]);
    findings.assert_says("indexes", "failure", &["pastes_due_idx", "run `cleanupctl migrate`"]);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert!(migrated.stdout().contains("pastes_due_idx"), "{}", migrated.stdout());
    doctor(&world).await.assert_says("indexes", "ok", &["valid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_that_blocks_the_cleanup_is_a_failure_until_it_is_removed() {
    let world = World::new().await;
    world.run_sql("ALTER TABLE pastes ALTER content_hash SET NOT NULL").await;
    let findings = doctor(&world).await;
    findings.assert_only(1, &["durability", "blockers"]);
    let words = ["NOT NULL on pastes.content_hash", "cleanupctl migrate --remove-blockers"];
    findings.assert_says("blockers", "failure", &words);
    let removed = world.program("cleanupctl").args(&["migrate", "--remove-blockers"]);
    assert_done(&removed.output().await);
    doctor(&world).await.assert_says("blockers", "ok", &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_is_named_with_the_statement_that_ends_it() {
    let world = World::new().await;
    let mut forgotten = connect(&world.database_url).await;
    forgotten.batch_execute("SET application_name = 'pg_dump'").await.expect("name");
    let open = forgotten.transaction().await.expect("begin");
    let pid: i32 = open.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
    let old = format!(
        "SELECT now() - xact_start > interval '1 s' FROM pg_stat_activity WHERE pid = {pid}"
    );
    world.until("it is open for a second", &old).await;
    doctor(&world).await.assert_says("transactions", "ok", &["none"]);
    let strict = || diagnose_with(world.program("cleanupctl"), &["--long-transaction", "1s"]);
    let end_it = format!("SELECT pg_terminate_backend({pid})");
    let who = format!("pid {pid} (pg_dump)");
    strict().await.assert_says("transactions", "warning", &[&who, "vacuum", &end_it]);
    world.run_sql(&end_it).await;
    let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
    world.until("it is gone", &gone).await;
    strict().await.assert_says("transactions", "ok", &["none"]);
}
