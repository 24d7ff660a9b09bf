//! Common support of the tests: real servers (started by `ops/test` or `ops/servers`), a database and a bucket for
//! each test, real worker processes, and proxies that fail on demand.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of it")]

pub(crate) mod adopted;
pub(crate) mod database;
pub(crate) mod faulty_s3;
pub(crate) mod findings;
pub(crate) mod guarded;
pub(crate) mod invariants;
pub(crate) mod memory_s3;
pub(crate) mod mid_run;
pub(crate) mod moto;
pub(crate) mod pastes;
pub(crate) mod pgbouncer;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod redis_cluster;
pub(crate) mod seaweedfs;
pub(crate) mod servers;
pub(crate) mod small_disk;
pub(crate) mod sockets;
pub(crate) mod sql;
pub(crate) mod steps;
pub(crate) mod watchdog;
pub(crate) mod work;
pub(crate) mod world;

pub(crate) use database::{connect, empty_database, try_connect};
pub(crate) use pastes::{
    Expires::{self, Ago, In, Never},
    hash, hex, list_keys,
};
pub(crate) use process::{Process, Signal};
pub(crate) use steps::{carry_out, claim, claim_some, codes, drain};
pub(crate) use world::World;

/// Reads a variable that `ops/test` and `ops/servers` set.
pub(crate) fn env(name: &str) -> String {
    std::env::var(format!("PASTE_CLEANUP_TEST_{name}"))
        .unwrap_or_else(|_| panic!("no servers for the tests: start them with `ops/servers`"))
}
