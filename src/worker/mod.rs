//! The worker: drains what has expired, batch by batch. The steps of a batch, in order:
//! `lock`, `claim`, `release`, `delete_objects`, `evict`, `finish`; `batch` strings them together,
//! `drain` keeps several batches in flight.

mod ages;
mod batch;
pub mod brake;
pub mod claim;
pub mod cli;
pub mod delete_objects;
mod detach;
mod doubt;
mod drain;
pub mod dry_run;
mod evict;
pub mod finish;
mod give_back;
mod heartbeat;
pub mod lock;
mod look;
pub mod open;
mod progress;
mod record;
mod release;
pub mod report;
pub mod run;
pub mod schedule;
mod settle;
mod start;
mod stop;
pub mod summary;
mod surroundings;
mod throttle;

use std::sync::{Arc, atomic::AtomicBool};

use deadpool_postgres::Pool;
use tokio::time::Instant;
use uuid::Uuid;

pub use self::{claim::ONE_PLAN, lock::Lock, open::OpenClaims, summary::PhaseTimes};
use self::{release::MissingContent, summary::Tally};
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
    release: Blame,
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
