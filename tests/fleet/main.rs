//! The guarantees of the fleet, one module per family, each on real servers: every test has a database
//! and a bucket of its own.

#[path = "../support/mod.rs"]
mod support;

mod adoption;
mod audit;
mod brake;
mod claim;
mod config;
mod decrement;
mod deployment;
mod doctor;
mod explain;
mod failover;
mod faults;
mod fence;
mod heartbeat;
mod hostile_names;
mod http;
mod lock;
mod logins;
mod lost_answers;
mod managed_postgres;
mod metrics;
mod migrate_roles;
mod named_faults;
mod observability;
mod odd_keys;
mod operator_commands;
mod outages;
mod owners;
mod pgbouncer;
mod queries;
mod redis_servers;
mod reset;
mod run;
mod s3_rights;
mod schedule;
mod signals;
mod single_deletes;
mod start_errors;
mod status;
mod throttle;
mod tls;
mod version_skew;
mod watchdog;
mod writer_contract;
