//! The expired-paste cleanup fleet: erases expired pastes from Postgres, S3 and Redis, counted
//! exactly, whatever crashes.
//!
//! The module list is the reading order. A batch's life is in [`worker`], one step per file; what
//! happens when a worker falls silent is in [`watchdog`].

pub mod config;

pub mod claim;

pub mod worker;

pub mod watchdog;

pub mod objects;
pub mod postgres;
pub mod redis;

pub mod audit;
pub mod backlog;
pub mod figures;
pub mod fleet;
pub mod migrate;

pub mod ctl;
pub mod http;
pub mod metrics;

pub mod cli;
pub mod shutdown;
pub mod telemetry;

mod backoff;
pub mod failpoint;
mod printable;
mod tls;
