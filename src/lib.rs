//! The expired-paste cleanup fleet: erases expired pastes from Postgres, S3 and Redis, counted
//! exactly, whatever crashes.
//!
//! The module list is the reading order. A batch's life is in [`worker`], one step per file; what
//! happens when a worker falls silent is in [`watchdog`].

/// The text of a query: `sql!("claim/insert")` is `sql/queries/claim/insert.sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/queries/", $name, ".sql"))
    };
}

pub mod config;

pub mod claim;

pub mod worker;

pub mod watchdog;

pub mod objects;
pub mod postgres;
pub mod redis;

pub mod audit;
pub mod fleet;
pub mod migrate;

pub mod ctl;
pub mod metrics;

pub mod cli;
pub mod shutdown;
pub mod telemetry;

mod backoff;
pub mod failpoint;
pub mod format;
mod printable;
mod tls;
