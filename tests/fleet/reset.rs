//! Resets: a paste that is reset keeps its reference only if its content still exists, and content
//! that a reset paste references is kept. This matters where a count was too low.

use std::sync::Arc;

use crate::support::*;
use paste_cleanup::{claim::Claim, worker::Worker};

const REF_COUNT: &str = "SELECT ref_count::bigint FROM content";
const WAS_RESET: &str =
    "SELECT count(*) FROM pastes WHERE short_code = 'one' AND deletion_status = 'NOT_EXPIRED'";

/// Two expired pastes with the same content, each claimed by another worker, and a count of one.
async fn two_claims_and_a_count_of_one(world: &World) -> [(Arc<Worker>, Claim); 2] {
    world.put("one", "shared", Ago(60.0)).await;
    world.put("two", "shared", Ago(50.0)).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let (first, second) = (world.worker().await, world.worker().await);
    let one = claim_some(&first, 1).await;
    let two = claim_some(&second, 1).await;
    assert_eq!((codes(&one), codes(&two)), (vec!["one".into()], vec!["two".into()]));
    [(first, one), (second, two)]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_reset_after_its_content_was_deleted_has_no_content() {
    let world = World::new().await;
    let [_, (worker, two)] = two_claims_and_a_count_of_one(&world).await;
    carry_out(&worker, &two).await;
    assert_eq!(
        world.keys().await,
        Vec::<String>::new(),
        "by its count, no other paste referenced it"
    );
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.rows, 1);
    assert_eq!(world.count(&format!("{WAS_RESET} AND content_hash IS NULL")).await, 1);
    let extended = "SELECT paste_extend('one', NULL)::int::bigint";
    assert_eq!(world.count(extended).await, 0, "too late: its content is gone");
    world.end_backoff().await;
    drain(&worker).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_waits_for_a_paste_that_is_being_reset_and_keeps_its_content() {
    let world = World::new().await;
    let [_, (worker, two)] = two_claims_and_a_count_of_one(&world).await;
    // A reset by hand that is not committed when the decrement starts.
    let by_hand = connect(&world.database_url).await;
    let back = "BEGIN; UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL
                WHERE short_code = 'one'";
    by_hand.batch_execute(back).await.expect("reset");
    let decrementing = {
        let (worker, two) = (Arc::clone(&worker), two.clone());
        tokio::spawn(async move { worker.decrement(&two).await })
    };
    world.when_a_worker_waits(&by_hand, "COMMIT").await;
    let decremented = decrementing.await.expect("join").expect("decrement");
    assert_eq!(
        (decremented.unreferenced.len(), decremented.drift),
        (0, 1),
        "the content is referenced again"
    );
    assert_eq!(world.count(REF_COUNT).await, 1);
    assert_eq!(world.count("SELECT paste_extend('one', NULL)::int::bigint").await, 1);
    assert_eq!(world.read("one").await.as_deref(), Some("shared"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_stays_in_progress_while_the_delete_of_its_content_is_uncommitted() {
    let world = World::new().await;
    two_claims_and_a_count_of_one(&world).await;
    world.expire_leases(7201.0).await;
    // What the decrement of the other claim does, not committed when the watchdog sweeps.
    let mut decrement = connect(&world.database_url).await;
    let deleting = decrement.transaction().await.expect("begin");
    deleting.batch_execute("SELECT FROM content FOR UPDATE").await.expect("lock");
    deleting.batch_execute("DELETE FROM content").await.expect("delete");
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (2, 0, 2));
    assert_eq!(world.count(WAS_RESET).await, 0);
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 0, "a later sweep does not wait for it either");
    deleting.commit().await.expect("commit");
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 2);
    assert_eq!(world.count(&format!("{WAS_RESET} AND content_hash IS NULL")).await, 1);
    assert_eq!(
        world.count("SELECT sum(attempts) FROM pastes").await,
        2,
        "one for each dead worker"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recount_counts_the_pastes_that_other_workers_have_claimed_and_not_decremented() {
    let world = World::new().await;
    world.put("live", "shared", Never).await;
    let [(first, one), (second, two)] = two_claims_and_a_count_of_one(&world).await;
    let decremented = second.decrement(&two).await.expect("decrement");
    assert_eq!((decremented.unreferenced.len(), decremented.drift), (0, 1));
    assert_eq!(
        world.count(REF_COUNT).await,
        2,
        "the live paste, and the one that is not decremented"
    );
    let decremented = first.decrement(&one).await.expect("decrement");
    assert_eq!(
        (decremented.unreferenced.len(), decremented.drift),
        (0, 0),
        "the count is correct now"
    );
    assert_eq!(world.count(REF_COUNT).await, 1);
    assert_eq!(world.read("live").await.as_deref(), Some("shared"));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_stored_again_is_not_decremented_by_an_older_batch() {
    let world = World::new().await;
    let [(first, one), (second, two)] = two_claims_and_a_count_of_one(&world).await;
    carry_out(&second, &two).await;
    world.put("new", "shared", Never).await;
    world.put("newer", "shared", Never).await;
    let decremented = first.decrement(&one).await.expect("decrement");
    assert_eq!((decremented.unreferenced.len(), decremented.drift), (0, 1));
    assert_eq!(world.count(REF_COUNT).await, 2, "a correct count stays correct");
    let objects = first.delete_objects(&one, &decremented).await.expect("delete");
    first.finish(&one, &objects, &Default::default()).await.expect("finish");
    assert_eq!(world.read("new").await.as_deref(), Some("shared"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_stored_again_by_a_transaction_older_than_the_claim_is_not_decremented() {
    let world = World::new().await;
    let mut writer = connect(&world.database_url).await;
    let put = writer.transaction().await.expect("begin");
    put.batch_execute("SELECT now()").await.expect("now() is fixed from here");
    let [(first, one), (second, two)] = two_claims_and_a_count_of_one(&world).await;
    carry_out(&second, &two).await;
    world.upload("again", "shared").await;
    let stored = "SELECT outcome FROM paste_put('new', sha256('shared'), 'again', 6, NULL)";
    put.query_one(stored, &[]).await.expect("put");
    put.commit().await.expect("commit");
    world.put("newer", "shared", Never).await;
    first.decrement(&one).await.expect("decrement");
    assert_eq!(world.count(REF_COUNT).await, 2, "a correct count stays correct");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_marked_by_another_client_keeps_its_content_whatever_the_count() {
    let world = World::new().await;
    world.put("live", "shared", Never).await;
    world.run_sql("UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS'").await;
    world.put("expired", "shared", Ago(60.0)).await;
    world.run_sql("UPDATE content SET ref_count = 1").await;
    let summary = drain(&world.worker().await).await;
    assert_eq!((summary.rows_deleted, summary.drift_repaired), (1, 1));
    world.run_sql("UPDATE pastes SET deletion_status = 'NOT_EXPIRED'").await;
    assert_eq!(world.read("live").await.as_deref(), Some("shared"));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_content_row_delays_one_stranded_row_and_no_other() {
    let world = World::new().await;
    world.put("held", "held", Ago(60.0)).await;
    world.put_many(20, 20).await;
    let stranded = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                                    deletion_initiated_at = now() - interval '3 hours'";
    world.run_sql(stranded).await;
    let mut forgotten = connect(&world.database_url).await;
    let lock = forgotten.transaction().await.expect("begin");
    let held = "SELECT FROM content WHERE content_hash = $1 FOR UPDATE";
    lock.query(held, &[&hash("held")]).await.expect("lock");
    assert_eq!(world.sweep().await.stranded, 20);
    lock.commit().await.expect("let go");
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 1);
    assert_eq!(world.count("SELECT count(*) FROM pastes WHERE content_hash IS NULL").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_triggers_nothing_is_claimed_until_migrate_repairs_them() {
    let world = World::new().await;
    world.put("expired", "a", Ago(60.0)).await;
    for trigger in ["pastes_verify_content", "pastes_guard"] {
        for (change, problem) in [
            (format!("ALTER TABLE pastes DISABLE TRIGGER {trigger}"), "is disabled"),
            (format!("ALTER TABLE pastes ENABLE TRIGGER {trigger}"), "not fire in every session"),
            (format!("DROP TRIGGER {trigger} ON pastes"), "is missing"),
        ] {
            world.run_sql(&change).await;
            let ended = world.program("cleanup-worker").args(&["run"]).output().await;
            ended.assert_refused(1, &[trigger, problem, "run `cleanupctl migrate`"]);
            let doctor = world.program("cleanupctl").args(&["doctor"]).output().await;
            assert!(doctor.stdout().contains(trigger), "{}", doctor.stdout());
            let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
            assert_eq!(migrated.code(), 0, "{}", migrated.stderr());
            let repaired = format!("repaired: the trigger {trigger}");
            assert!(migrated.stdout().contains(&repaired), "{}", migrated.stdout());
        }
    }
    assert_eq!(drain(&world.worker().await).await.rows_deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_update_pastes_can_reset_one_without_rights_on_content() {
    let world = World::new().await;
    two_claims_and_a_count_of_one(&world).await;
    let role = format!("resetter_{}", uuid::Uuid::new_v4().simple());
    world.run_sql(&format!("CREATE ROLE {role}; GRANT SELECT, UPDATE ON pastes TO {role}")).await;
    world
        .run_sql(&format!(
            "SET ROLE {role};
             CREATE TEMP TABLE content (content_hash bytea);
             UPDATE pastes SET deletion_status = 'NOT_EXPIRED', claim_id = NULL;
             RESET ROLE; DROP TABLE pg_temp.content; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .await;
    let kept = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL";
    assert_eq!(world.count(kept).await, 2, "the temporary table of that name is not used");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_and_a_decrement_of_the_same_content_do_not_deadlock() {
    for claims in [1, 2] {
        reset_beside_a_decrement(claims).await;
    }
}

/// A dead worker has two pastes in `claims` claims, a live one has two others; they share two
/// contents.
async fn reset_beside_a_decrement(claims: u32) {
    let world = World::new().await;
    let mut contents = ["left", "right"];
    contents.sort_by_key(|content| std::cmp::Reverse(hash(content)));
    // The paste that is claimed first has the content that is last in hash order.
    for (code, content, age) in [("a", 0, 60.0), ("b", 1, 59.0), ("c", 0, 50.0), ("d", 1, 49.0)] {
        world.put(code, contents[content], Ago(age)).await;
    }
    let (dead, worker) = (world.worker().await, world.worker().await);
    for _ in 0..claims {
        claim_some(&dead, 2 / claims).await;
    }
    world.expire_leases(7201.0).await;
    let claim = claim_some(&worker, 2).await;
    let mut blocker = connect(&world.database_url).await;
    let lock = blocker.transaction().await.expect("begin");
    let first = "SELECT FROM content WHERE content_hash = $1 FOR UPDATE";
    lock.query(first, &[&hash(contents[1])]).await.expect("lock");
    let decrementing = {
        let (worker, claim) = (Arc::clone(&worker), claim.clone());
        tokio::spawn(async move { worker.decrement(&claim).await })
    };
    world.until_workers_wait(1).await;
    let swept = world.sweep().await;
    assert_eq!(swept.reset.claims, claims as usize, "a reset waits for no other transaction");
    assert_eq!((swept.reset.rows, swept.reset.left), (1, 1));
    lock.commit().await.expect("commit");
    let decremented = decrementing.await.expect("join").expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    world.end_deferral().await;
    assert_eq!(world.sweep().await.stranded, 1);
    world.assert_consistent().await;
}
