//! Claim ids that would start again (after a restore of pastes alone, TRUNCATE … RESTART IDENTITY, or
//! logical replication) are moved past every id in use before anything is claimed.

use crate::support::{findings::diagnose, *};

/// Creates a world with a paste that is claimed under an id which `deletion_claims` does not have.
async fn restored() -> World {
    let world = World::new().await;
    world.put("claimed before", "a", Ago(60.0)).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', claim_id = 3,
                               deletion_initiated_at = now();
             TRUNCATE deletion_claims RESTART IDENTITY",
        )
        .await;
    world
}

const LAST: &str = "SELECT coalesce(pg_sequence_last_value('deletion_claims_id_seq'), 0)";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_never_gets_the_id_of_rows_that_were_claimed_before_a_restore() {
    let world = restored().await;
    let worker = world.worker().await;
    for n in 1..=4 {
        world.put(&format!("p{n}"), "b", Ago(60.0)).await;
        let claim = claim_some(&worker, 1).await;
        assert_eq!(claim.fence.claim, 3 + n);
        assert_eq!(codes(&claim), [format!("p{n}")]);
        carry_out(&worker, &claim).await;
    }
    let kept = "SELECT count(*) FROM pastes WHERE short_code = 'claimed before'";
    assert_eq!(world.count(kept).await, 1, "rows of another claim are unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_moves_claim_ids_every_time_they_are_behind_and_never_back() {
    let world = restored().await;
    let migrate = async || {
        let ended = world.program("cleanupctl").args(&["migrate"]).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
        ended.stdout()
    };
    assert!(migrate().await.contains("moved claim ids past 3"));
    assert_eq!(world.count(LAST).await, 3);
    assert_eq!(migrate().await, "the schema is current\n");
    world.run_sql("SELECT setval('deletion_claims_id_seq', 50)").await;
    assert_eq!(migrate().await, "the schema is current\n");
    assert_eq!(world.count(LAST).await, 50, "never back");
    // Logical replication copies the rows of another server, but not its sequence.
    world
        .run_sql(
            "INSERT INTO deletion_claims (id, worker, rows_claimed, finished_at)
             VALUES (900, gen_random_uuid(), 1, now())",
        )
        .await;
    assert!(migrate().await.contains("moved claim ids past 900"));
    assert_eq!(world.count(LAST).await, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_moved_only_after_a_claim_in_progress_has_ended() {
    let world = restored().await;
    // It has id 1, and takes more ids before it ends. Moving the sequence in between would hand them
    // out again.
    let claiming = connect(&world.database_url).await;
    let insert =
        "INSERT INTO deletion_claims (worker, rows_claimed) VALUES (gen_random_uuid(), 1);";
    claiming.batch_execute(&format!("BEGIN; {insert}")).await.expect("claim");
    let starting = world.program("cleanup-worker").args(&["run"]).start();
    world.when_a_worker_waits(&claiming, &format!("{} ROLLBACK", insert.repeat(4))).await;
    let ended = starting.end().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(
        world.count(LAST).await,
        5,
        "the ids were already past the highest, and were not moved back"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_the_right_to_move_claim_ids_is_told_to_migrate() {
    let world = restored().await;
    world.run_sql("REVOKE ALL ON SEQUENCE deletion_claims_id_seq FROM cleanup_worker").await;
    world.put("due", "b", Ago(60.0)).await;
    let run = || world.program("cleanup-worker").args(&["run"]).output();
    run().await.assert_refused(1, &["claim ids up to 3 are in use", "`cleanupctl migrate`"]);
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0, "nothing was claimed");
    let url = world.worker_url();
    let doctor = diagnose(world.program("cleanupctl").env("DATABASE_URL", &url)).await;
    doctor.assert_says("rights", "failure", &["on deletion_claims_id_seq", "migrate --roles"]);
    let migrated = world.program("cleanupctl").args(&["migrate", "--roles"]).output().await;
    assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
    assert_eq!(run().await.code(), 0);
}
