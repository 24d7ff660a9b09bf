//! Whose error is it? A row error costs that row an attempt; a transient error of a dependency
//! costs no row anything.

mod object_errors;
mod outages;
mod row_errors;

use std::{sync::Arc, time::Duration};

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};
use paste_cleanup::worker::Worker;

/// For tests in which S3 answers in the end.
const LONG: Duration = Duration::from_secs(60);
/// For tests in which the deadline must pass.
const SHORT: Duration = Duration::from_secs(1);

/// Creates a world with a worker that has this S3 deadline.
async fn world_within(deadline: Duration) -> (World, FaultyS3, Arc<Worker>) {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = worker_within(&world, &s3, deadline).await;
    (world, s3, worker)
}

async fn worker_within(world: &World, s3: &FaultyS3, deadline: Duration) -> Arc<Worker> {
    let change = |settings: &mut paste_cleanup::config::Settings| {
        settings.s3.endpoint = Some(s3.url.clone());
        settings.s3.deadline = deadline;
    };
    world.worker_with(change).await
}

fn refusing(text: String, code: &'static str) -> Mode {
    Mode::Refusing { text, code }
}
