//! Common support of the tests: real servers (started by `ops/test` or `ops/servers`), a database and a bucket for
//! each test, real worker processes, and proxies that fail on demand.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of it")]

pub mod adopted;
pub mod database;
pub mod faulty_s3;
pub mod findings;
pub mod guarded;
pub mod invariants;
pub mod memory_s3;
pub mod mid_run;
pub mod moto;
pub mod pastes;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod random;
pub mod seaweedfs;
pub mod servers;
pub mod small_disk;
pub mod sockets;
pub mod sql;
pub mod steps;
pub mod watchdog;
pub mod work;
pub mod world;

pub use database::{connect, empty_database, try_connect};
pub use pastes::{
    Expires::{self, Ago, In, Never},
    hash, hex, list_keys,
};
pub use process::{Process, Signal};
pub use steps::{carry_out, claim, claim_some, codes, drain};
pub use world::World;

/// Reads a variable that `ops/test` and `ops/servers` set.
pub fn env(name: &str) -> String {
    std::env::var(format!("PASTE_CLEANUP_TEST_{name}"))
        .unwrap_or_else(|_| panic!("no servers for the tests: start them with `ops/servers`"))
}
