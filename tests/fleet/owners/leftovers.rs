//! After a finish no row has the claim's id, whatever triggers and other clients do.

use paste_cleanup::{
    claim::Claim,
    watchdog::prune::prune,
    worker::{Worker, batch::delete_objects::ObjectsDeleted},
};

use super::*;
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_swallows_deletes_is_reported_and_makes_no_count_wrong() {
    let world = World::new().await;
    for n in 0..30 {
        world.put(&format!("p{n}"), "shared", Ago(60.0)).await;
    }
    world.put("one", "shared", Never).await;
    world.put("two", "shared", Never).await;
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", "RETURN NULL;").await;
    for night in 1..=3 {
        let ended = run(&world).await;
        assert_eq!(ended.code(), 1, "night {night}: {}", ended.stderr());
        assert!(ended.stderr().contains("swallows it"), "{}", ended.stderr());
        let count = "SELECT ref_count::bigint FROM content";
        assert_eq!(world.count(count).await, 2, "night {night}: the two live pastes");
        assert_eq!(world.count("SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL").await, 0);
        world.end_backoff().await;
    }
    assert_eq!(world.read("one").await.as_deref(), Some("shared"));
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(run(&world).await.code(), 0);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn swallowed_deletes_fail_only_their_own_rows() {
    let world = World::new().await;
    world.put_many(50, 50).await;
    let soft = "IF OLD.short_code LIKE '%5' THEN RETURN NULL; END IF; RETURN OLD;";
    trigger(&world, "BEFORE DELETE ON pastes FOR EACH ROW", soft).await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    assert_eq!((ended.json()["rows_deleted"].as_i64(), world.count(LEFT).await), (Some(45), 5));
    let failed = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                   AND content_hash IS NULL AND attempts > 0 AND last_error LIKE '%swallows it%'";
    assert_eq!(world.count(failed).await, 5);
    assert_eq!(world.count("SELECT count(*) FROM content").await, 0);
}

/// Runs a worker, and executes `sql` while S3 holds its only batch.
async fn run_with_sql_during_its_batch(world: &World, mode: Mode, sql: &str) -> process::Ended {
    let s3 = FaultyS3::start(world, Mode::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .start();
    s3.called(1).await;
    world.run_sql(sql).await;
    s3.set_mode(mode);
    s3.let_go();
    worker.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pastes_that_another_client_deletes_during_a_batch_are_counted_and_logged() {
    let world = World::new().await;
    for n in 0..10 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let delete = "DELETE FROM pastes WHERE short_code IN ('p3', 'p4')";
    let ended = run_with_sql_during_its_batch(&world, Mode::Normal, delete).await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert_eq!(
        (&ended.json()["rows_deleted"], &ended.json()["rows_deleted_by_others"]),
        (&8.into(), &2.into())
    );
    let stderr = ended.stderr();
    assert!(
        stderr.contains("another program deleted 2 of its pastes") && stderr.contains("p3"),
        "{stderr}"
    );
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_short_code_of_a_paste_in_progress_cannot_be_changed() {
    let world = World::new().await;
    world.put("old-name", "a", Ago(60.0)).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 1).await;
    let rename = "UPDATE pastes SET short_code = 'new-name'";
    let refused = world.db.batch_execute(rename).await.expect_err("refused");
    assert_eq!(refused.code().map(|code| code.code().to_string()).as_deref(), Some("55006"));
    carry_out(&worker, &claim).await;
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_object_whose_paste_was_deleted_becomes_pending_on_another_paste() {
    let world = World::new().await;
    let key = world.put("owner", "refused", Ago(61.0)).await;
    world.put("other", "fine", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    s3.set_mode(Mode::Refusing { text: key.clone(), code: "ObjectLocked" });
    let worker = world.worker_with(|settings| settings.s3.endpoint = Some(s3.url.clone())).await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    world.run_sql("DELETE FROM pastes WHERE short_code = 'owner'").await;
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((finished.rows, finished.gone, finished.failed.len()), (0, 1, 1));
    let pending = "SELECT pending_s3_key FROM pastes WHERE short_code = 'other'";
    assert_eq!(world.text(pending).await, Some(key));
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_object_without_any_paste_left_stays_pending_on_its_claim() {
    let world = World::new().await;
    let key = world.put("owner", "refused", Ago(61.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    s3.set_mode(Mode::Refusing { text: key.clone(), code: "ObjectLocked" });
    let worker = world.worker_with(|settings| settings.s3.endpoint = Some(s3.url.clone())).await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    world.run_sql("DELETE FROM pastes").await;
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    let kept = "SELECT pending_s3_keys[1] FROM deletion_claims";
    assert_eq!(world.text(kept).await, Some(key.clone()));
    world.run_sql("UPDATE deletion_claims SET finished_at = '2020-01-01', counted = true").await;
    prune(&world.watchdog_pool(), &world.settings).await.expect("prune");
    assert_eq!(world.text(kept).await, Some(key), "it is never pruned");
}

/// Claims three pastes with objects that S3 refuses to delete, and performs all steps before finish.
async fn refused_objects(
    world: &World,
    s3: &FaultyS3,
) -> (std::sync::Arc<Worker>, Claim, ObjectsDeleted) {
    for n in 1..=3 {
        world.put(&format!("p{n}"), &format!("refused {n}"), Ago(60.0)).await;
    }
    s3.set_mode(Mode::Refusing { text: "/".into(), code: "ObjectLocked" });
    let worker = world.worker_with(|settings| settings.s3.endpoint = Some(s3.url.clone())).await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    (worker, claim, objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_object_whose_paste_is_locked_strands_no_other_paste() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let (worker, claim, objects) = refused_objects(&world, &s3).await;
    let mut forgotten = connect(&world.database_url).await;
    let holding = forgotten.transaction().await.expect("begin");
    let lock = "SELECT FROM pastes WHERE short_code = 'p2' FOR UPDATE";
    holding.batch_execute(lock).await.expect("lock");
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((finished.rows, finished.failed.len()), (0, 3));
    let reset = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED'
                AND pending_s3_key IS NOT NULL";
    assert_eq!(world.count(reset).await, 2);
    holding.rollback().await.expect("let go");
    assert_eq!((world.sweep().await.stranded, world.count(reset).await), (1, 3));
    assert_drained_after_backoff(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_object_whose_paste_cannot_be_updated_strands_no_other_paste() {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let (worker, claim, objects) = refused_objects(&world, &s3).await;
    let held = "IF OLD.short_code = 'p2' THEN RAISE EXCEPTION 'held'; END IF; RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", held).await;
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((finished.rows, finished.failed.len()), (0, 3));
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    assert_eq!(world.sweep().await.stranded, 1);
    assert_drained_after_backoff(&world).await;
}
