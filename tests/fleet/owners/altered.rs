//! Columns that their owner alters while a worker runs, and values that the writer's contract never
//! stores.

use super::{assert_deleted, assert_drained_after_backoff, run};
use crate::support::{mid_run::run_with_change, *};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_when_the_type_of_attempts_changes_during_it() {
    let (world, ended) = run_with_change("ALTER TABLE pastes ALTER attempts TYPE int").await;
    assert_deleted(&ended, 20);
    world.assert_drained().await;
    run(&world).await.assert_refused(1, &["pastes.attempts is integer", "smallint is needed"]);
}

const CLAIM_ID_TO_INT: &str = "ALTER TABLE pastes ALTER claim_id TYPE int";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_when_the_type_of_claim_id_changes_during_it() {
    let (world, ended) = run_with_change(CLAIM_ID_TO_INT).await;
    assert_deleted(&ended, 20);
    world.assert_drained().await;
    run(&world).await.assert_refused(1, &["pastes.claim_id is integer", "bigint is needed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_are_reset_although_the_type_of_claim_id_has_changed() {
    let world = World::new().await;
    world.put_many(4, 4).await;
    let (worker, idle) = (world.worker().await, world.worker().await);
    let claims = [claim_some(&worker, 1).await, claim_some(&worker, 1).await];
    // The second claim ended by hand, with the key of an object that its paste must still delete.
    let code = &claims[1].pastes[0].short_code;
    let keep = format!(
        "{CLAIM_ID_TO_INT};
         UPDATE deletion_claims SET decremented_at = now(), reset_at = now(),
                                    pending_owners = '{{{code}}}', pending_s3_keys = '{{kept}}'
         WHERE id = {}",
        claims[1].fence.claim
    );
    world.run_sql(&keep).await;
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.rows, swept.stranded), (1, 1));
    let key = "SELECT count(*) FROM pastes WHERE pending_s3_key = 'kept'";
    assert_eq!(world.count(key).await, 1, "its claim's key");
    // It prepares all statements after the change.
    let claim = claim_some(&idle, 2).await;
    let reset = idle.release(claim.fence, "a test").await.expect("release");
    assert_eq!((reset.rows, reset.left), (2, 0));
}

/// A column that a trigger's definition names can be altered only without the trigger.
const TO_VARCHAR: &str = "
    DROP TRIGGER pastes_guard ON pastes;
    ALTER TABLE pastes ALTER short_code TYPE varchar(64), ALTER pending_s3_key TYPE varchar;
    ALTER TABLE content ALTER s3_key TYPE varchar";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_when_prepared_statements_become_stale() {
    let (world, ended) = run_with_change(TO_VARCHAR).await;
    assert_deleted(&ended, 20);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_becomes_unreadable_during_a_run_is_named_and_nothing_stays_claimed() {
    let change = "ALTER TABLE pastes ALTER pending_s3_key TYPE bytea USING NULL";
    let (world, ended) = run_with_change(change).await;
    ended.assert_refused(1, &["pastes.pending_s3_key cannot be read", "`cleanupctl doctor`"]);
    let claimed = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";
    assert_eq!(world.count(claimed).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_attempts_count_as_zero() {
    let world = World::new().await;
    for (n, attempts) in [-1, -3, -32768].into_iter().enumerate() {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
        let set = format!("UPDATE pastes SET attempts = {attempts} WHERE short_code = 'p{n}'");
        world.run_sql(&set).await;
    }
    let worker = world.worker().await;
    let batch = claim_some(&worker, 100).await;
    assert_eq!(codes(&batch), ["p0", "p1", "p2"], "one batch");
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.rows, 3);
    let counted = "SELECT count(*) FROM pastes WHERE attempts = 1 AND retry_at > now()";
    assert_eq!(world.count(counted).await, 3, "their first attempt");
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_expires_at_infinity_is_kept_and_every_command_can_show_it() {
    let world = World::new().await;
    world.put("forever", "a", Never).await;
    world.put("ancient", "b", Ago(60.0)).await;
    let odd = "UPDATE pastes SET expires_at = 'infinity' WHERE short_code = 'forever';
               UPDATE pastes SET expires_at = '-infinity', retry_at = 'infinity', attempts = 5,
                                 last_error = 'AccessDenied' WHERE short_code = 'ancient'";
    world.run_sql(odd).await;
    for args in [
        &["explain", "forever"][..],
        &["explain", "ancient"],
        &["dead-letters"],
        &["status"],
        &["requeue", "--all"],
        &["status"],
    ] {
        let ended = world.program("cleanupctl").args(args).output().await;
        assert_eq!(ended.code(), 0, "{args:?}: {}", ended.stderr());
    }
    let ended = run(&world).await;
    assert_deleted(&ended, 1);
    assert_eq!(world.read("forever").await.as_deref(), Some("a"));
}
