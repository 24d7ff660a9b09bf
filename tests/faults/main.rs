//! Whose error is it? A row error costs that row an attempt; a transient error of a dependency
//! costs no row anything.

mod object_errors;
mod outages;
mod row_errors;
#[path = "../support/mod.rs"]
mod support;

use std::{sync::Arc, time::Duration};

use paste_cleanup::worker::Worker;
use support::{
    faulty_s3::{FaultyS3, Mode},
    *,
};

/// Creates a world with a worker whose S3 is in this mode, and whose S3 deadline is one second.
async fn world_with(mode: Mode) -> (World, FaultyS3, Arc<Worker>) {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    let worker = worker_within(&world, &s3, Duration::from_secs(1)).await;
    s3.set_mode(mode);
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
