//! Resets and sweeps with triggers of the owner: a row that cannot be reset delays no other row.

use std::time::Duration;

use paste_cleanup::watchdog::prune::prune;

use super::*;
use crate::support::*;

const OPEN: &str =
    "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
const RESET: &str = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'";

/// Creates a trigger that refuses every update of this row.
async fn refuse_updates(world: &World, code: &str) {
    let body =
        format!("IF OLD.short_code = '{code}' THEN RAISE EXCEPTION 'held'; END IF; RETURN NEW;");
    trigger(world, "BEFORE UPDATE ON pastes FOR EACH ROW", &body).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_constraint_blocks_one_row_and_no_other_claim() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    claim_some(&worker, 10).await;
    world
        .run_sql(
            "CREATE FUNCTION quota() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF NEW.short_code = 'p00000007' THEN RAISE EXCEPTION 'quota'; END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER quota AFTER UPDATE ON pastes DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION quota()",
        )
        .await;
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (2, 19, 1));
    assert_eq!((world.count(OPEN).await, world.count(RESET).await), (0, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pending_key_of_a_row_that_cannot_be_reset_moves_to_another_row() {
    let world = World::new().await;
    let key = world.put("p1", "one", Ago(61.0)).await;
    world.put("p2", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 10).await;
    worker.decrement(&claim).await.expect("decrement");
    refuse_updates(&world, "p1").await;
    world.expire_leases(7201.0).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (1, 1, 1));
    let pending = "SELECT pending_s3_key FROM pastes WHERE short_code = 'p2'";
    assert_eq!(world.text(pending).await, Some(key));
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(world.sweep().await.stranded, 1);
    world.end_backoff().await;
    drain(&worker).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranded_row_that_cannot_be_updated_does_not_keep_others_from_being_reset() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let worker = world.worker().await;
    claim_some(&worker, 10).await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
                               deletion_initiated_at = now() - interval '5 hours'
             WHERE deletion_status = 'NOT_EXPIRED';
             UPDATE deletion_claims SET reset_at = now()",
        )
        .await;
    refuse_updates(&world, "p00000015").await;
    assert_eq!((world.sweep().await.stranded, world.count(RESET).await), (19, 19));
    // The same for a row without deletion_initiated_at.
    world.run_sql("DROP TRIGGER owners_trigger ON pastes; DROP FUNCTION owners_trigger()").await;
    world
        .run_sql(
            "UPDATE pastes SET deletion_initiated_at = NULL WHERE short_code = 'p00000015';
             UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', claim_id = NULL,
                               deletion_initiated_at = now() - interval '5 hours', retry_at = NULL
             WHERE short_code = 'p00000003'",
        )
        .await;
    refuse_updates(&world, "p00000015").await;
    assert_eq!(world.sweep().await.stranded, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_cannot_be_deleted_does_not_keep_others_from_being_pruned() {
    let world = World::new().await;
    world.put_many(20, 20).await;
    let keep = |s: &mut paste_cleanup::config::Settings| {
        s.retention.tombstones = Duration::from_secs(3600);
    };
    drain(&world.worker_with(keep).await).await;
    world.run_sql("UPDATE pastes SET deletion_initiated_at = now() - interval '1 day'").await;
    let body = "IF OLD.short_code = 'p00000007' THEN RAISE EXCEPTION 'held'; END IF; RETURN OLD;";
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", body).await;
    let mut settings = world.settings.clone();
    keep(&mut settings);
    let pruned = prune(&world.watchdog_pool(), &settings).await.expect("prune");
    assert_eq!((pruned.tombstones, world.count(LEFT).await), (19, 1));
}

/// Leaves a decremented claim of a dead worker; each of its pastes has a pending object delete.
async fn decremented_claim(world: &World, pastes: i32) {
    world.put_many(pastes, pastes).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, pastes.unsigned_abs()).await;
    worker.decrement(&claim).await.expect("decrement");
    world.expire_leases(7201.0).await;
}

const PENDING: &str = "SELECT count(*) FROM pastes WHERE pending_s3_key IS NOT NULL";
const KEPT: &str = "SELECT coalesce(sum(cardinality(pending_s3_keys)), 0) FROM deletion_claims";

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_paste_with_a_pending_object_does_not_keep_others_from_being_reset() {
    let world = World::new().await;
    decremented_claim(&world, 20).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    let lock = "SELECT FROM pastes WHERE short_code = 'p00000007' FOR UPDATE";
    holding.batch_execute(lock).await.expect("lock");
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (1, 19, 1));
    assert_eq!((world.count(OPEN).await, world.count(PENDING).await), (0, 19));
    assert_eq!(world.count(KEPT).await, 1, "its key stays with the claim");
    holding.rollback().await.expect("let go");
    assert_eq!(world.sweep().await.stranded, 1);
    assert_eq!((world.count(PENDING).await, world.count(KEPT).await), (20, 0));
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_that_is_reset_late_takes_its_pending_key_from_its_claim() {
    let world = World::new().await;
    decremented_claim(&world, 20).await;
    refuse_updates(&world, "p00000007").await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (1, 19, 1));
    assert_eq!((world.count(PENDING).await, world.count(KEPT).await), (19, 1));
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(world.sweep().await.stranded, 1);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_ended_by_hand_loses_no_pending_object_delete() {
    let world = World::new().await;
    decremented_claim(&world, 20).await;
    world.run_sql("UPDATE deletion_claims SET reset_at = now()").await;
    assert_eq!(world.sweep().await.stranded, 20);
    assert_eq!((world.count(PENDING).await, world.count(KEPT).await), (20, 0));
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_that_a_trigger_swallows_are_counted_and_the_sweep_ends() {
    let world = World::new().await;
    decremented_claim(&world, 20).await;
    let swallow = "IF OLD.short_code LIKE '%7' THEN RETURN NULL; END IF; RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", swallow).await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (1, 18, 2));
    assert_eq!((world.count(OPEN).await, world.count(RESET).await), (0, 18));
    assert_eq!(world.sweep().await.stranded, 0, "a later sweep ends, too");
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(world.sweep().await.stranded, 2);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_every_reset_is_swallowed_ends_and_its_pastes_are_reset_later() {
    let world = World::new().await;
    decremented_claim(&world, 5).await;
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", "RETURN NULL;").await;
    let swept = world.sweep().await;
    assert_eq!((swept.reset.claims, swept.reset.rows, swept.reset.left), (1, 0, 5));
    assert_eq!((world.count(OPEN).await, world.count(KEPT).await), (0, 5));
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(world.sweep().await.stranded, 5);
    world.end_backoff().await;
    drain(&world.worker().await).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_keys_that_a_trigger_discards_stay_with_the_claim() {
    for undo in ["RETURN OLD;", "NEW.pending_s3_key := OLD.pending_s3_key; RETURN NEW;"] {
        let world = World::new().await;
        decremented_claim(&world, 9).await;
        let body = format!("IF OLD.short_code = 'p00000007' THEN {undo} END IF; RETURN NEW;");
        trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", &body).await;
        let swept = world.sweep().await;
        assert_eq!((swept.reset.rows, swept.reset.left), (8, 1), "{undo}");
        assert_eq!((world.count(PENDING).await, world.count(KEPT).await), (8, 1), "{undo}");
        assert_eq!(world.sweep().await.stranded, 0, "{undo}");
        world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
        assert_eq!(world.sweep().await.stranded, 1, "{undo}");
        world.end_backoff().await;
        drain(&world.worker().await).await;
        world.assert_drained().await;
    }
}
