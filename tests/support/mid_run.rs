//! Changes to the database in the middle of a run.

use super::{
    Ago, World,
    faulty_s3::{FaultyS3, Mode},
    process::Ended,
};

/// Starts a worker process on 20 expired pastes, in batches of five, executes `change` while S3 holds
/// its first batch, and waits until the worker exits.
pub(crate) async fn run_with_change(change: &str) -> (World, Ended) {
    let world = World::new().await;
    for n in 0..20 {
        world.put(&format!("p{n}"), &format!("b{n}"), Ago(60.0)).await;
    }
    let s3 = FaultyS3::start(&world, Mode::Holding).await;
    let worker = world
        .program("cleanup-worker")
        .args(&["run", "--format", "json", "--batch-size", "5", "--concurrency", "1"])
        .env("AWS_ENDPOINT_URL", &s3.url)
        .env("CLEANUP_WORKER_OUTAGE_TIMEOUT", "10s")
        .start();
    s3.called(1).await;
    world.run_sql(change).await;
    s3.let_go();
    let ended = worker.end().await;
    assert!(!ended.stderr().contains("panicked"), "{}", ended.stderr());
    (world, ended)
}
