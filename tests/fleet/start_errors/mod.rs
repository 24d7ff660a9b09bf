//! Starting: a program that cannot work prints one line with the remedy and exits within seconds,
//! before it claims anything.

mod output;
mod postgres;
mod redis;
mod s3;
mod schema;

use std::time::{Duration, Instant};

use crate::support::{process::Ended, *};

/// The programs that need a prepared database, as cron would start them.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("cleanup-worker", &["run"]),
    ("cleanup-watchdog", &["--once"]),
    ("cleanupctl", &["status"]),
    ("cleanupctl", &["seed", "--pastes", "1"]),
];
/// Those that need the bucket, too.
const BUCKET_PROGRAMS: [(&str, &[&str]); 2] = [PROGRAMS[0], PROGRAMS[3]];
const WITHIN: Duration = Duration::from_secs(60);

/// A world with something to claim.
async fn world() -> World {
    let world = World::new().await;
    world.put("due", "a", Ago(60.0)).await;
    world
}

/// Runs a program that must fail within seconds, with one line that contains these words.
async fn assert_gives_up(process: Process, words: &[&str]) {
    let started = Instant::now();
    let ended = process.output().await;
    ended.assert_refused(1, words);
    assert_eq!(ended.stdout(), "");
    assert!(started.elapsed() < WITHIN, "took {:?}", started.elapsed());
}

/// Asserts that nothing was claimed or deleted, and that no bucket was bound.
async fn assert_untouched(world: &World) {
    let claims = world.count("SELECT count(*) FROM deletion_claims").await;
    let due = "SELECT count(*) FROM pastes WHERE deletion_status = 'NOT_EXPIRED' AND attempts = 0";
    assert_eq!((claims, world.count(due).await), (0, 1));
    let bound = "SELECT count(*) FROM cleanup_fleet WHERE bucket IS NOT NULL";
    assert_eq!(world.count(bound).await, 0, "no bucket is bound");
    assert_eq!(world.read("due").await.as_deref(), Some("a"));
}

async fn timed(process: Process) -> Option<Ended> {
    tokio::time::timeout(WITHIN, process.output()).await.ok()
}
