//! `cleanupctl audit`: finds what is wrong between bucket and tables, and nothing else, while
//! everything runs. The audit runs as a process of its own, under the rights of its role.

mod brakes;
mod churn;
mod counts;
mod hidden;
mod keys;
mod odd_stores;
mod pending_deletes;
mod planted;
mod refusals;
mod resume;
mod spellings;
mod stage;
#[path = "../support/mod.rs"]
mod support;
mod writers;
mod wrong_tables;
