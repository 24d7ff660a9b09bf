//! The expired-paste cleanup fleet: erases expired pastes from Postgres, S3 and Redis, counted
//! exactly, whatever crashes.
//!
//! The module list is the reading order. A batch's life is in [`worker`], one step per file; what
//! happens when a worker falls silent is in [`watchdog`].

pub mod cli;
pub mod config;
pub mod shutdown;
pub mod telemetry;

pub mod claim;
pub mod fleet;
pub mod migrate;
pub mod objects;
pub mod postgres;
pub mod redis;

pub mod watchdog;
pub mod worker;

pub mod ctl;
pub mod http;
pub mod metrics;

mod backoff;
mod tls;
