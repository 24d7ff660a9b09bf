//! Why a migration stopped, or why a program does not start on this database.

use std::time::Duration;

use crate::{
    postgres::{describe, remedy},
    printable::printable,
    problem::Problem,
};

/// Why the migration stopped. Completed steps stay, and are not repeated by the next run.
#[derive(thiserror::Error, Debug)]
pub enum MigrateError {
    /// Only a person can fix these; nothing was changed.
    #[error("this database cannot be migrated as it is; nothing was changed:\n  {}", .problems.join("\n  "))]
    Refused {
        /// Each is one line for a person.
        problems: Vec<String>,
    },
    /// These can be removed, but only with `--remove-blockers`; nothing was changed.
    #[error(
        "these would break the cleanup; nothing was changed:\n  {}\nrun `cleanupctl migrate --remove-blockers` to remove them",
        .blockers.join("\n  ")
    )]
    Blocked {
        /// The constraints, each with the reason why it must go.
        blockers: Vec<String>,
    },
    /// The cleanupctl of a newer version has migrated this database.
    #[error(
        "the database has schema version {found}, but this program knows only {needed}: use the newer cleanupctl"
    )]
    TooNew {
        /// The newest migration of the database.
        found: i32,
        /// The newest migration that this program knows.
        needed: i32,
    },
    /// No lock within the time limit.
    #[error(
        "migration step `{step}` got no lock in {}: a long transaction has locked its table ({holders}); end it or wait for its end, then run `cleanupctl migrate` again",
        humantime::format_duration(*waited)
    )]
    Locked {
        /// The title of the step, from its line `-- step: …`.
        step: String,
        /// The wait over all tries, in whole seconds.
        waited: Duration,
        /// The transactions that have locked the tables, if this role may see them.
        holders: String,
    },
    /// A step failed for another reason than a lock.
    #[error("migration step `{step}` failed: {}; fix the cause, then run `cleanupctl migrate` again", in_detail(.cause))]
    Step {
        /// The title of the step, from its line `-- step: …`.
        step: String,
        /// The error of its last try.
        cause: tokio_postgres::Error,
    },
    /// `IF NOT EXISTS` found something else with the name of the index.
    #[error(
        "the name {index} is in use, but not by a valid index of the fleet's tables: rename what uses it, then run `cleanupctl migrate` again"
    )]
    NameTaken {
        /// The index that the step was to build.
        index: String,
    },
    /// Something that is not a step failed, such as the lock or a check.
    #[error("could not {doing}: {}", in_detail(.cause))]
    Postgres {
        /// What was tried: the rest of a sentence that begins with "could not".
        doing: &'static str,
        /// The error of the statement.
        cause: tokio_postgres::Error,
    },
}

/// Returns an error with Postgres' detail, which names the row or the object that is in the way.
fn in_detail(error: &tokio_postgres::Error) -> String {
    let detail = error.as_db_error().and_then(|refusal| refusal.detail());
    let detail = detail.map(|detail| format!(" ({})", printable(detail))).unwrap_or_default();
    format!("{}{detail}", describe(error))
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

/// What to do about a database that is a copy of another one.
pub const SUBSCRIBER_REMEDY: &str = "this database is a copy, and its objects belong to the live \
    pastes of the publisher; run the cleanup there or, after the switch-over, DROP SUBSCRIPTION here";

/// Why a program does not start on this database.
#[derive(thiserror::Error, Debug)]
#[error("{}", Problem::from(self))]
pub enum SchemaError {
    /// No completed migration is recorded.
    NotMigrated,
    /// The tables exist, but not on the `search_path` of this login.
    Elsewhere(Vec<String>),
    /// This program is newer than the last `cleanupctl migrate`.
    TooOld {
        /// The newest migration of the database.
        found: i32,
        /// The newest migration that this program knows.
        needed: i32,
    },
    /// The cleanupctl of a newer version has migrated this database.
    TooNew {
        /// The newest migration of the database.
        found: i32,
        /// The newest migration that this program knows.
        needed: i32,
    },
    /// The tables were altered after the migration.
    Unfit(Vec<Problem>),
    /// Logical replication copies these tables from a publisher, whose pastes are live and use the same
    /// bucket.
    Subscriber(String),
    /// Tables inherit from each other, since this program started.
    Inherits,
    /// The schema could not be read.
    Postgres(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for SchemaError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<&SchemaError> for Problem {
    fn from(error: &SchemaError) -> Self {
        const MIGRATE: &str = "run `cleanupctl migrate`";
        match error {
            SchemaError::NotMigrated => {
                Self::new("the database is not prepared for the cleanup", MIGRATE)
            }
            SchemaError::Elsewhere(schemas) => Self::new(
                format!(
                    "the cleanup's tables are in schema {}, which is not on the search_path of this \
                     login",
                    schemas.join(", ")
                ),
                "set postgres.schema (CLEANUP_POSTGRES_SCHEMA)",
            ),
            SchemaError::TooOld { found, needed } => {
                let problem = format!(
                    "the database has schema version {found}, but this program needs {needed}"
                );
                Self::new(problem, MIGRATE)
            }
            SchemaError::TooNew { found, needed } => Self::new(
                format!(
                    "the database has schema version {found}, but this program knows only {needed}"
                ),
                "upgrade this program to the version of the cleanupctl that migrated the database",
            ),
            SchemaError::Unfit(problems) => Self::join(problems),
            SchemaError::Subscriber(subscription) => Self::new(subscription, SUBSCRIBER_REMEDY),
            SchemaError::Inherits => Self::new(
                "pastes or content inherits from another table, or another table from it, since this \
                 program started",
                "`cleanupctl doctor` names the tables",
            ),
            SchemaError::Postgres(error) => {
                let problem = format!("could not read the schema version: {}", describe(error));
                Self::new(problem, remedy(error))
            }
        }
    }
}
