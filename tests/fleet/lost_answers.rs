//! Commits whose answer was lost are neither repeated nor forgotten.

use std::{sync::Arc, time::Duration};

use crate::support::{
    proxy::{Fault, Proxy, address_of},
    *,
};
use paste_cleanup::worker::{Worker, report::StoppedBecause};

/// Creates a world with a worker that reaches Postgres through a proxy.
async fn world_behind_a_proxy() -> (World, Proxy, Arc<Worker>) {
    let world = World::new().await;
    let proxy = Proxy::start(&address_of(&world.database_url)).await;
    let url = proxy.through(&world.worker_url());
    let worker = world.worker_with(|settings| settings.postgres.url = Some(url.into())).await;
    (world, proxy, worker)
}

fn names(failed: &[(String, String)]) -> Vec<&str> {
    failed.iter().map(|(short_code, _)| &**short_code).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_is_released_uncounted() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("a", "a", Ago(60.0)).await;
    proxy.arm(Fault::LoseAnswerOf("COMMIT"));
    let wanted = paste_cleanup::worker::batch::claim::Wanted {
        size: 10,
        mark: None,
        busy: false,
        until: None,
    };
    assert!(worker.claim(wanted).await.is_err());
    assert_eq!(proxy.fired(), 1);
    let claimed = "SELECT count(*) FROM pastes WHERE deletion_status = 'DELETION_IN_PROGRESS'";
    assert_eq!(
        world.count(claimed).await,
        1,
        "the claim is committed, and the worker does not know it"
    );
    assert_eq!(worker.release_unconfirmed().await.expect("release"), 1);
    assert_eq!(world.count(claimed).await, 0);
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    assert_eq!(drain(&worker).await.rows_deleted, 1);
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_whose_answer_was_lost_is_not_repeated() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    let unreferenced = world.put("a", "only", Ago(60.0)).await;
    world.put("b", "shared", Ago(50.0)).await;
    world.put("live", "shared", Never).await;
    world.put("live too", "shared", Never).await;
    let claim = claim_some(&worker, 10).await;
    proxy.arm(Fault::LoseAnswerOf("COMMIT"));
    let decremented = worker.decrement(&claim).await.expect("decrement");
    assert_eq!(proxy.fired(), 1);
    assert_eq!(decremented.unreferenced.len(), 1, "continues from the claim row");
    assert_eq!(decremented.unreferenced[0].s3_key, unreferenced);
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 2, "subtracted once");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_whose_commit_never_arrived_is_done_again() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("a", "shared", Ago(60.0)).await;
    world.put("live", "shared", Never).await;
    let claim = claim_some(&worker, 10).await;
    proxy.arm(Fault::CutBefore("COMMIT"));
    let decremented = worker.decrement(&claim).await.expect("decrement");
    assert_eq!(proxy.fired(), 1);
    assert_eq!(world.count("SELECT ref_count::bigint FROM content").await, 1);
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_whose_answer_was_lost_is_neither_repeated_nor_forgotten() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("a", "a", Ago(60.0)).await;
    world.put("b", "b", Ago(60.0)).await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    proxy.arm(Fault::LoseAnswerOf("COMMIT"));
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((proxy.fired(), finished.rows), (1, 2), "counted from the claim row");
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_whose_commit_never_arrived_is_done_again() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("a", "a", Ago(60.0)).await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    proxy.arm(Fault::CutBefore("COMMIT"));
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((proxy.fired(), finished.rows), (1, 1));
    world.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrement_whose_answer_was_lost_still_reports_failed_rows_and_drift() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("held", "held", Ago(60.0)).await;
    world.put("fine", "fine", Ago(60.0)).await;
    world.put("low", "low", Ago(60.0)).await;
    world.put("live", "low", Never).await;
    world
        .run_sql(
            "CREATE TABLE previews (hash bytea REFERENCES content (content_hash));
             INSERT INTO previews VALUES (sha256('held'));
             UPDATE content SET ref_count = 1 WHERE content_hash = sha256('low')",
        )
        .await;
    let claim = claim_some(&worker, 10).await;
    // The whole batch fails before its COMMIT, so this is the COMMIT of the batch without the bad
    // row.
    proxy.arm(Fault::LoseAnswerOf("COMMIT"));
    let decremented = worker.decrement(&claim).await.expect("decrement");
    assert_eq!(
        (proxy.fired(), decremented.unreferenced.len()),
        (1, 1),
        "continues from the claim row"
    );
    assert_eq!(names(&decremented.failed), ["held"]);
    assert_eq!(decremented.drift, 1);
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    let left = "SELECT string_agg(short_code || attempts, ',' ORDER BY short_code) FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("held1,live0"), "failed once");
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_whose_answer_was_lost_still_reports_failed_rows() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    world
        .run_sql(
            "CREATE TABLE comments (paste text REFERENCES pastes (short_code));
             INSERT INTO comments VALUES ('held')",
        )
        .await;
    let claim = claim_some(&worker, 10).await;
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let objects = worker.delete_objects(&claim, &decremented).await.expect("delete");
    proxy.arm(Fault::LoseAnswerOf("COMMIT"));
    let finished = worker.finish(&claim, &objects, &Default::default()).await.expect("finish");
    assert_eq!((proxy.fired(), finished.rows), (1, 1), "counted from the claim row");
    assert_eq!(names(&finished.failed), ["held"]);
    let left = "SELECT string_agg(short_code || attempts, ',') FROM pastes";
    assert_eq!(world.text(left).await.as_deref(), Some("held1"), "failed once");
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_its_dead_letters_whichever_answer_was_lost() {
    for spared in 0..4 {
        let (world, proxy, worker) = world_behind_a_proxy().await;
        for code in ["content held", "row held", "fine"] {
            world.put(code, code, Ago(60.0)).await;
        }
        world
            .run_sql(
                "CREATE TABLE previews (hash bytea REFERENCES content (content_hash));
                 INSERT INTO previews VALUES (sha256('content held'));
                 CREATE TABLE comments (paste text REFERENCES pastes (short_code));
                 INSERT INTO comments VALUES ('row held')",
            )
            .await;
        let mut settings = (*worker.settings).clone();
        settings.worker.max_attempts = 1;
        let worker = world.worker_with(|own| *own = settings).await;
        proxy.arm_after(spared, Fault::LoseAnswerOf("COMMIT"));
        let summary = drain(&worker).await;
        assert_eq!(proxy.fired(), 1, "after {spared}");
        assert_eq!((summary.rows_deleted, summary.rows_failed), (1, 2), "after {spared}");
        assert_eq!(summary.stopped_because, StoppedBecause::Failed, "after {spared}");
        world.assert_consistent().await;
    }
}

/// The rows fail permanently, and the batch hits its outage timeout before it reads that back. The
/// claim row does not list them then; the run finds them by the rows themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_its_dead_letters_when_an_outage_follows_the_lost_answer() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    world.put("row held", "a", Ago(60.0)).await;
    world.put("fine", "b", Ago(60.0)).await;
    world
        .run_sql(
            "CREATE TABLE comments (paste text REFERENCES pastes (short_code));
             INSERT INTO comments VALUES ('row held')",
        )
        .await;
    let mut settings = (*worker.settings).clone();
    settings.worker.max_attempts = 1;
    settings.worker.outage_timeout = Duration::from_secs(1);
    let worker = world.worker_with(|own| *own = settings).await;
    // Spares the COMMITs of the sweep, the brake, the claim and the decrement.
    proxy.arm_after(4, Fault::DownAfter("COMMIT"));
    let running = tokio::spawn({
        let worker = Arc::clone(&worker);
        async move { drain(&worker).await }
    });
    world
        .until("the finish is committed", "SELECT count(finished_at) = 1 FROM deletion_claims")
        .await;
    while worker.open.unconfirmed() == 0 && !running.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.up();
    let summary = running.await.expect("run");
    assert_eq!((summary.rows_failed, summary.stopped_because), (1, StoppedBecause::Failed));
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_loses_one_answer_after_the_other_deletes_everything_once() {
    let (world, proxy, worker) = world_behind_a_proxy().await;
    for n in 0..80 {
        world.put(&format!("p{n}"), &format!("body {}", n % 9), Ago(60.0)).await;
    }
    world.put("live", "body 4", Never).await;
    let mut settings = (*worker.settings).clone();
    settings.worker.batch_size = 4;
    let worker = world.worker_with(|own| *own = settings).await;
    let running = tokio::spawn(async move { drain(&worker).await });
    for losses in 0..10 {
        let fault = if losses % 2 == 0 { Fault::LoseAnswerOf } else { Fault::CutBefore };
        // Not the next COMMIT: that is often the one which reads back the outcome of the last.
        proxy.arm_after([4, 7, 5, 3, 6][losses % 5], fault("COMMIT"));
        while proxy.fired() <= losses && !running.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let summary = running.await.expect("run");
    assert_eq!((summary.error, summary.drift_repaired), (None, 0), "no count was ever wrong");
    assert!(proxy.fired() >= 5, "only {} faults", proxy.fired());
    world.assert_drained().await;
    assert_eq!(world.read("live").await.as_deref(), Some("body 4"));
    let open =
        "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
    assert_eq!(world.count(open).await, 0);
}
