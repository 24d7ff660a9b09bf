//! Faults of the workers: killed, paused, unable to start, or with a paste that failed permanently.

use super::{assert_done, assert_says, doctor};
use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

/// Kills a worker while S3 deletes its objects, and returns the open claim.
async fn kill_a_worker(world: &World) -> i64 {
    world.put("held", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(world, Mode::Holding).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let worker = run.start();
    s3.called(1).await;
    worker.signal(Signal::KILL);
    assert_ne!(worker.end().await.code(), 0);
    world.count("SELECT id FROM deletion_claims").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_just_killed_is_named_with_its_claim_and_what_resets_it_now() {
    let world = World::new().await;
    kill_a_worker(&world).await;
    doctor(&world).await.assert_says("claims", "ok", &["sends heartbeats"]);
    world.expire_leases(40.0).await;
    let worker = world.text("SELECT worker::text FROM deletion_claims").await.expect("a worker");
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "claims"]);
    let reset = format!("`cleanupctl reset --worker {worker}`");
    let words = [&*worker, "no heartbeat for", "1 paste\"", "can be reset in 1h 5", &reset];
    findings.assert_says("claims", "warning", &words);
    let done = world.program("cleanupctl").args(&["reset", "--worker", &worker]).output().await;
    assert_done(&done);
    doctor(&world).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_without_a_watchdog_is_named_with_the_sweep_to_run() {
    let world = World::new().await;
    kill_a_worker(&world).await;
    world.expire_leases(2.0 * 3600.0 + 61.0).await;
    let words = ["no heartbeat for 2h", "start cleanup-watchdog", "`cleanup-watchdog --once`"];
    doctor(&world).await.assert_says("claims", "warning", &words);
    assert_done(&world.program("cleanup-watchdog").args(&["--once"]).output().await);
    doctor(&world).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_a_warning_with_its_error_and_the_command() {
    let world = World::new().await;
    let key = world.put("locked", "a", Ago(60.0)).await;
    let s3 = FaultyS3::start(&world, Mode::Refusing { text: key, code: "ObjectLocked" }).await;
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &s3.url);
    let ended = run.env("CLEANUP_WORKER_MAX_ATTEMPTS", "1").output().await;
    assert_eq!(ended.code(), 1, "{}", ended.stderr());
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "dead letters"]);
    let words = [
        "1 paste failed permanently",
        "locked",
        "ObjectLocked",
        "`cleanupctl dead-letters`",
        "requeue --all",
    ];
    findings.assert_says("dead letters", "warning", &words);
    let again = world.program("cleanupctl").args(&["requeue", "--all"]).output().await;
    assert_done(&again);
    doctor(&world).await.assert_says("dead letters", "ok", &["none"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_fleet_is_a_warning_with_the_reason_until_it_is_resumed() {
    let world = World::new().await;
    let pause = ["pause", "--reason", "a move, ask Ada"];
    assert_done(&world.program("cleanupctl").args(&pause).output().await);
    let findings = doctor(&world).await;
    findings.assert_only(0, &["durability", "pause"]);
    findings.assert_says("pause", "warning", &["paused", "a move, ask Ada", "`cleanupctl resume`"]);
    assert_done(&world.program("cleanupctl").args(&["resume"]).output().await);
    doctor(&world).await.assert_says("pause", "ok", &["not paused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_could_not_start_is_recorded_with_its_reason() {
    let world = World::new().await;
    let worker = world.program("cleanup-worker").args(&["run"]).env("S3_BUCKET", "no-such-bucket");
    assert_eq!(worker.output().await.code(), 1);
    let status = world.program("cleanupctl").args(&["status"]).output().await.stdout();
    assert_says(&status, &["failed", "does not exist; create it", "cleanupctl doctor"]);
    let counted = "SELECT count(*) FROM cleanup_runs
                   WHERE stats @> '{\"runs.failed\": 1, \"s3_errors.denied\": 1}'";
    assert_eq!(world.count(counted).await, 1);
}
