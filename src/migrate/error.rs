//! Why a migration stopped, or why a program does not start on this database.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio_postgres::Row;

use crate::printable::printable;

/// Why the migration stopped. What it had done stays and is not done again by the next run.
#[derive(thiserror::Error, Debug)]
pub enum MigrateError {
    /// Only a person can fix these; nothing was changed.
    #[error("this database cannot be migrated as it is; nothing was changed:\n  {}", .problems.join("\n  "))]
    Refused { problems: Vec<String> },
    /// These can be removed, but only when told to; nothing was changed.
    #[error(
        "these would break the cleanup; nothing was changed:\n  {}\nrun `cleanupctl migrate --remove-blockers` to remove them",
        .blockers.join("\n  ")
    )]
    Blocked { blockers: Vec<String> },
    #[error(
        "the database is at schema version {found}, this program only knows {needed}: use the newer cleanupctl"
    )]
    TooNew { found: i32, needed: i32 },
    /// All patience was used up without getting a lock.
    #[error(
        "migration step `{step}` got no lock in {}: a long transaction holds its table ({holders}); end it or wait for its end, then run `cleanupctl migrate` again",
        humantime::format_duration(*waited)
    )]
    Locked { step: String, waited: Duration, holders: String },
    #[error("migration step `{step}` failed: {}; repair the cause, then run `cleanupctl migrate` again", describe(.cause))]
    Step { step: String, cause: tokio_postgres::Error },
    /// `IF NOT EXISTS` was content with something that is not the index.
    #[error(
        "the name {index} is taken by something that is not a valid index of the fleet's tables: rename that, then run `cleanupctl migrate` again"
    )]
    NameTaken { index: String },
    #[error("could not {doing}: {}", describe(.cause))]
    Postgres { doing: &'static str, cause: tokio_postgres::Error },
}

impl MigrateError {
    /// For `map_err`: the failure of something that is not a step.
    pub(super) fn while_doing(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |cause| Self::Postgres { doing, cause }
    }

    /// For `map_err`: the failure of a step.
    pub(super) fn in_step(step: &str) -> impl Fn(tokio_postgres::Error) -> Self {
        move |cause| Self::Step { step: step.to_owned(), cause }
    }
}

/// All of them on one line.
pub fn join(problems: &[Problem], text: impl Fn(&Problem) -> String) -> String {
    let mut texts: Vec<String> = problems.iter().map(text).collect();
    texts.dedup();
    texts.join("; ")
}

/// What to do about a database that is the copy of another one.
pub const SUBSCRIBER_REMEDY: &str = "this database is a copy, and its objects belong to the live \
    pastes of the publisher; run the cleanup there, or, after the switch-over, DROP SUBSCRIPTION here";

/// What is wrong with the tables, and what to do about it.
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

/// From the columns `problem` and `remedy`.
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
    /// Not on the `search_path` of this login, but there.
    #[error(
        "the cleanup's tables are not on the search_path of this login, but in schema {}: set \
         postgres.schema (CLEANUP_POSTGRES_SCHEMA)",
        .0.join(", ")
    )]
    Elsewhere(Vec<String>),
    #[error(
        "the database is at schema version {found}, this program needs {needed}: run `cleanupctl migrate`"
    )]
    TooOld { found: i32, needed: i32 },
    #[error(
        "the database is at schema version {found}, this program only knows {needed}: upgrade it to the version of the `cleanupctl migrate` that was run"
    )]
    TooNew { found: i32, needed: i32 },
    /// Somebody has altered the tables since they were migrated.
    #[error("{}", join(.0, ToString::to_string))]
    Unfit(Vec<Problem>),
    /// Logical replication copies these tables from a server whose pastes are the live ones, and
    /// whose bucket is the same.
    #[error("{0}: {SUBSCRIBER_REMEDY}")]
    Subscriber(String),
    #[error("could not read the schema version: {}", describe(.0))]
    Postgres(#[from] tokio_postgres::Error),
}

/// The driver prints "db error" and hides the rest in its source; a person needs the rest.
fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        let said = format!("{}{detail}", db.message());
        return format!("{} {}: {}", db.severity(), db.code().code(), printable(&said));
    }
    match error.source() {
        Some(source) => printable(&format!("{error}: {source}")),
        None => error.to_string(),
    }
}
