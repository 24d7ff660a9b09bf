//! The expired-paste cleanup fleet: erases expired pastes from Postgres, S3 and Redis, with exact
//! reference counts, whatever crashes.
//!
//! The module list is the reading order. [`worker`] has one file for each step of a batch; [`watchdog`]
//! resets the claims of workers that died.

/// Includes the text of a query: `sql!("claim/claim")` is `sql/queries/claim/claim.sql`.
macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/queries/", $name, ".sql"))
    };
}

// Settings, and the domain types that all programs share.
pub mod claim;
pub mod config;

// The three programs: cleanup-worker, cleanup-watchdog, cleanupctl.
pub mod ctl;
pub mod watchdog;
pub mod worker;

// What the programs share about the fleet and its database.
pub mod audit;
pub mod fleet;
pub mod metrics;
pub mod migrate;

// The dependencies: connections, error classes, retries.
pub mod objects;
pub mod postgres;
pub mod redis;
mod tls;

// Process plumbing: command line, signals, logs, texts.
mod backoff;
pub mod cli;
pub mod failpoint;
pub mod format;
mod mutex;
mod printable;
pub mod problem;
pub mod shutdown;
pub mod telemetry;

/// Makes a property test check the same random cases in every run.
#[cfg(test)]
fn same_cases() -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        rng_seed: proptest::test_runner::RngSeed::Fixed(0),
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    }
}
