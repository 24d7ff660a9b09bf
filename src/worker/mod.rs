//! The worker: drains what has expired, batch by batch. The steps of a batch, in order:
//! `lock`, `claim`, `decrement`, `delete_objects`, `evict`, `finish`; `batch` strings them together,
//! `drain` keeps several batches in flight.

pub mod batch;
pub mod cli;
pub mod report;
pub mod run;
pub mod schedule;
mod start;

use std::sync::{Arc, atomic::AtomicBool};

use deadpool_postgres::Pool;
use tokio::time::Instant;
use uuid::Uuid;

use self::{
    batch::{Lock, MissingContent, OpenClaims},
    report::Tally,
};
use crate::{
    config::Settings,
    objects::Objects,
    postgres::{Target, bisect::Blame},
    redis::Redis,
    shutdown::Shutdown,
};

/// An error of the pool, or of Postgres behind it.
pub type PgError = deadpool_postgres::PoolError;

/// For each step of a batch that writes.
#[derive(Debug, Default)]
struct Blames {
    claim: Blame,
    decrement: Blame,
    finish: Blame,
}

/// One worker process: its identity, its connections, its open claims.
pub struct Worker {
    /// Minted at process start; half of every fence.
    pub id: Uuid,
    pub settings: Arc<Settings>,
    pub shutdown: Shutdown,
    pub open: OpenClaims,
    pub lock: Lock,
    pub tally: Tally,
    /// Whose fault failing statements are.
    blame: Blames,
    missing: MissingContent,
    override_brake: AtomicBool,
    started: Instant,
    target: Target,
    pool: Pool,
    redis: Redis,
    objects: Objects,
}
