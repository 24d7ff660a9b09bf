//! `cleanupctl audit` finds exactly what is wrong between bucket and tables, while workers and writers
//! run. The audit runs as a process of its own, with the rights of its role.

mod brakes;
mod churn;
mod counts;
mod findings;
mod keys;
mod lost_rows;
mod odd_stores;
mod pending_deletes;
mod plain_store;
mod refusals;
mod resume;
mod row_security;
mod spellings;
mod stage;
mod writers;
mod wrong_tables;
