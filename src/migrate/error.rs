//! Why a migration stopped, or why a program does not start on this database.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Row;

use crate::printable::printable;

/// Why the migration stopped. Completed steps stay, and are not repeated by the next run.
#[derive(thiserror::Error, Debug)]
pub enum MigrateError {
    /// Only a person can fix these; nothing was changed.
    #[error("this database cannot be migrated as it is; nothing was changed:\n  {}", .problems.join("\n  "))]
    Refused { problems: Vec<String> },
    /// These can be removed, but only with `--remove-blockers`; nothing was changed.
    #[error(
        "these would break the cleanup; nothing was changed:\n  {}\nrun `cleanupctl migrate --remove-blockers` to remove them",
        .blockers.join("\n  ")
    )]
    Blocked { blockers: Vec<String> },
    #[error(
        "the database has schema version {found}, but this program knows only {needed}: use the newer cleanupctl"
    )]
    TooNew { found: i32, needed: i32 },
    /// No lock within the time limit.
    #[error(
        "migration step `{step}` got no lock in {}: a long transaction has locked its table ({holders}); end it or wait for its end, then run `cleanupctl migrate` again",
        humantime::format_duration(*waited)
    )]
    Locked { step: String, waited: Duration, holders: String },
    #[error("migration step `{step}` failed: {}; fix the cause, then run `cleanupctl migrate` again", describe(.cause))]
    Step { step: String, cause: tokio_postgres::Error },
    /// `IF NOT EXISTS` found something else with the name of the index.
    #[error(
        "the name {index} is in use, but not by a valid index of the fleet's tables: rename what uses it, then run `cleanupctl migrate` again"
    )]
    NameTaken { index: String },
    #[error("could not {doing}: {}", describe(.cause))]
    Postgres { doing: &'static str, cause: tokio_postgres::Error },
}

impl MigrateError {
    /// Returns a closure for `map_err`: the failure of something that is not a step.
    pub(super) fn while_doing(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |cause| Self::Postgres { doing, cause }
    }

    /// Returns a closure for `map_err`: the failure of a step.
    pub(super) fn in_step(step: &str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |cause| Self::Step { step: step.to_owned(), cause }
    }
}

/// Joins problems on one line, without repetitions.
pub fn join(problems: &[Problem], text: impl Fn(&Problem) -> String) -> String {
    let mut texts: Vec<String> = problems.iter().map(text).collect();
    texts.dedup();
    texts.join("; ")
}

/// What to do about a database that is a copy of another one.
pub const SUBSCRIBER_REMEDY: &str = "this database is a copy, and its objects belong to the live \
    pastes of the publisher; run the cleanup there or, after the switch-over, DROP SUBSCRIPTION here";

/// A problem of the tables, and its remedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub problem: String,
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem, self.remedy)
    }
}

/// Reads the columns `problem` and `remedy`.
impl From<&Row> for Problem {
    fn from(row: &Row) -> Self {
        let text = |column| printable(row.get(column));
        Self { problem: text("problem"), remedy: text("remedy") }
    }
}

/// Why a program does not start on this database.
#[derive(thiserror::Error, Debug)]
pub enum SchemaError {
    #[error("the database is not prepared for the cleanup: run `cleanupctl migrate`")]
    NotMigrated,
    /// The tables exist, but not on the `search_path` of this login.
    #[error(
        "the cleanup's tables are in schema {}, which is not on the search_path of this login: set \
         postgres.schema (CLEANUP_POSTGRES_SCHEMA)",
        .0.join(", ")
    )]
    Elsewhere(Vec<String>),
    #[error(
        "the database has schema version {found}, but this program needs {needed}: run `cleanupctl migrate`"
    )]
    TooOld { found: i32, needed: i32 },
    #[error(
        "the database has schema version {found}, but this program knows only {needed}: upgrade this program to the version of the cleanupctl that migrated the database"
    )]
    TooNew { found: i32, needed: i32 },
    /// The tables were altered after the migration.
    #[error("{}", join(.0, ToString::to_string))]
    Unfit(Vec<Problem>),
    /// Logical replication copies these tables from a publisher, whose pastes are live and use the same
    /// bucket.
    #[error("{0}: {SUBSCRIBER_REMEDY}")]
    Subscriber(String),
    #[error(
        "pastes or content inherits from another table, or another table from it, since this program \
         started: `cleanupctl doctor` names the tables"
    )]
    Inherits,
    #[error("could not read the schema version: {}", describe(.0))]
    Postgres(#[from] tokio_postgres::Error),
}

/// Returns an error with SQLSTATE, message and detail: the driver itself prints just "db error".
fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        let message = format!("{}{detail}", db.message());
        return format!("{} {}: {}", db.severity(), db.code().code(), printable(&message));
    }
    match error.source() {
        Some(source) => printable(&format!("{error}: {source}")),
        None => error.to_string(),
    }
}
