//! If most content rows are missing, content is probably kept in other tables, and deleting the pastes
//! would leave their objects behind: the safety brake stops the run.

use paste_cleanup::claim::StepError;

use super::*;
use crate::support::*;

async fn without_content(missing: i32, whole: i32) -> World {
    let world = World::new().await;
    world.put_many(missing + whole, missing + whole).await;
    let sql = format!(
        "DELETE FROM content WHERE content_hash IN
         (SELECT content_hash FROM pastes ORDER BY short_code LIMIT {missing})"
    );
    world.run_sql(&sql).await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_before_its_first_claim_when_much_content_is_missing() {
    let world = without_content(150, 50).await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 4, "{}", ended.stderr());
    assert_eq!(ended.json()["stopped_because"], "brake");
    let stderr = ended.stderr();
    assert!(stderr.contains("150 of 200 pastes have no content row"), "{stderr}");
    assert_eq!((world.count(LEFT).await, world.count(ATTEMPTS).await), (200, 0));
    assert_eq!(world.count("SELECT count(*) FROM deletion_claims").await, 0, "nothing was claimed");
    let ended = run_with(&world, &["--override-brake"]).await;
    assert_eq!((ended.code(), world.count(LEFT).await), (0, 0), "{}", ended.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_finds_missing_content_later_releases_those_pastes_unchanged() {
    let world = without_content(0, 1300).await;
    world
        .run_sql(
            "DELETE FROM content WHERE content_hash IN
             (SELECT content_hash FROM pastes ORDER BY short_code DESC LIMIT 150)",
        )
        .await;
    let ended = run(&world).await;
    assert_eq!(ended.code(), 4, "{}", ended.stderr());
    let whole = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL AND attempts = 0
                 AND deletion_status = 'NOT_EXPIRED'";
    assert_eq!((world.count(LEFT).await, world.count(whole).await), (300, 300));
    assert_eq!(run(&world).await.code(), 4, "the next run does not delete them either");
    assert_eq!(world.count(LEFT).await, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hashes_of_missing_content_survive_a_worker_that_dies_before_it_releases_them() {
    let world = without_content(150, 50).await;
    let worker = world.worker().await;
    let claim = claim_some(&worker, 200).await;
    let braked = worker.decrement(&claim).await;
    assert!(matches!(braked, Err(StepError::Brake(_))), "{braked:?}");
    world.expire_leases(7201.0).await;
    assert_eq!(world.sweep().await.reset.rows, 200);
    // A put of the same text inserts new content, whose count would not include them.
    assert_eq!(world.count("SELECT count(content_hash) FROM pastes").await, 50);
    let named = "SELECT count(*) FROM pastes
                 WHERE last_error LIKE 'worker lease expired%; content row '
                       || encode(sha256(('b' || ltrim(substr(short_code, 2), '0'))::bytea), 'hex')
                       || ' was missing'";
    assert_eq!(world.count(named).await, 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_the_brake_that_succeeds_only_later_keeps_the_hashes() {
    let world = without_content(0, 1300).await;
    world
        .run_sql(
            "DELETE FROM content WHERE content_hash IN
             (SELECT content_hash FROM pastes ORDER BY short_code DESC LIMIT 150)",
        )
        .await;
    let busy = "IF NEW.deletion_status = 'NOT_EXPIRED' THEN
                RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END IF; RETURN NEW;";
    trigger(&world, "BEFORE UPDATE ON pastes FOR EACH ROW", busy).await;
    let worker = world.program("cleanup-worker").args(&["run", "--format", "json"]);
    let mut worker = worker.start();
    worker.until_it_logs("could not release claim").await;
    world.run_sql("DROP TRIGGER owners_trigger ON pastes").await;
    let ended = worker.end().await;
    assert_eq!(ended.code(), 4, "{}", ended.stderr());
    let whole = "SELECT count(*) FROM pastes WHERE content_hash IS NOT NULL
                 AND deletion_status = 'NOT_EXPIRED'";
    assert_eq!((world.count(LEFT).await, world.count(whole).await), (300, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_content_is_summed_over_all_batches() {
    let world = without_content(150, 50).await;
    // Behind enough other pastes that the sample at the start does not include them.
    world
        .run_sql(
            "INSERT INTO pastes (short_code, expires_at)
             SELECT 'plain' || n, now() - interval '1 day' FROM generate_series(1, 1000) n",
        )
        .await;
    let ended = run_with(&world, &["--batch-size", "20", "--concurrency", "4"]).await;
    assert_eq!(ended.code(), 4, "{}", ended.stderr());
    assert!(world.count(LEFT).await >= 50, "at most a hundred were deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_little_missing_content_is_drift_and_does_not_stop_the_run() {
    let world = without_content(20, 30).await;
    let ended = run(&world).await;
    assert_eq!((ended.code(), &ended.json()["drift_repaired"]), (0, &20.into()));
    assert_eq!(world.count(LEFT).await, 0);
}
