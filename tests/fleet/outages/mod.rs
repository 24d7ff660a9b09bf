//! Outages of Postgres, Redis or S3 during a run, and for longer than the run. Outages at start are
//! in `start_errors`, a primary that is lost permanently in `failover.rs`.

mod postgres;
mod redis;
mod s3;

use crate::support::{process::Ended, *};

const OPEN: &str =
    "SELECT count(*) FROM deletion_claims WHERE finished_at IS NULL AND reset_at IS NULL";
/// What a worker logs when it stops claiming, and when it continues.
const WAITS: &str = "paused claims";
const GOES_ON: &str = "resumed claims";

/// Creates a world with this many expired pastes and a live one.
async fn world(pastes: usize) -> World {
    let world = World::new().await;
    fill(&world, pastes).await;
    world
}

async fn fill(world: &World, pastes: usize) {
    for n in 0..pastes {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    world.put("live", "b1", Never).await;
}

/// A run with small batches.
fn run(world: &World) -> Process {
    world.program("cleanup-worker").args(&["run", "--format", "json", "--batch-size", "5"])
}

/// A run with timeouts of one second.
fn run_with_short_timeouts(world: &World) -> Process {
    run(world)
        .env("CLEANUP_WORKER_OUTAGE_TIMEOUT", "1s")
        .env("CLEANUP_WORKER_GRACE_PERIOD", "1s")
        .env("CLEANUP_S3_DEADLINE", "1s")
}

/// Asserts that the run deleted everything in the end, and that no paste lost an attempt.
async fn assert_recovered(world: &World, ended: &Ended, pastes: usize) {
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let summary = ended.json();
    assert_eq!((&summary["rows_deleted"], &summary["rows_failed"]), (&pastes.into(), &0.into()));
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    assert_eq!(world.read("live").await.as_deref(), Some("b1"));
    world.assert_drained().await;
}

/// Asserts that the run gave up with one line that contains these words, that nothing is claimed or
/// lost, and that no paste lost an attempt.
async fn assert_gave_up(world: &World, ended: &Ended, words: &[&str]) {
    ended.assert_refused(1, words);
    assert_eq!(ended.json()["stopped_because"], "failed", "{}", ended.stderr());
    assert_eq!(world.count(OPEN).await, 0, "a claim was left behind: {}", ended.stderr());
    assert_eq!(world.count("SELECT sum(attempts) FROM pastes").await, 0);
    world.assert_consistent().await;
}
