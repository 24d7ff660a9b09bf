//! Classifies why a statement failed, by SQLSTATE and by the table that the error names.

use tokio_postgres::{
    Error,
    error::{Severity, SqlState},
};

/// The fleet's own tables: an error in one of these is never a row error of a paste.
const OWN_TABLES: [&str; 3] = ["deletion_claims", "cleanup_runs", "cleanup_unclaimable"];

/// What the failure of a statement proves about its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A row error: a row violates a constraint, or has a value that cannot be processed.
    Row,
    /// A row error or the database's fault: a trigger raised it, or a privilege is missing. The result for
    /// other rows decides.
    Unclear,
    /// Another transaction has locked a row for longer than `lock_timeout`.
    Locked,
    /// The statement took longer than `statement_timeout`.
    Slow,
    /// Postgres is unavailable, out of resources, read-only or shutting down, or cancelled a deadlock.
    Transient,
}

impl Fault {
    /// Classifies an error.
    pub fn of(error: &Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            return Self::Transient;
        };
        if refusal.table().is_some_and(|table| OWN_TABLES.contains(&table)) {
            return Self::Transient;
        }
        match refusal.code() {
            &SqlState::LOCK_NOT_AVAILABLE => Self::Locked,
            &SqlState::QUERY_CANCELED => Self::Slow,
            // A cached plan whose tables were altered. The routine is checked because a trigger can raise this
            // code, too.
            &SqlState::FEATURE_NOT_SUPPORTED
                if refusal.routine() == Some("RevalidateCachedQuery") =>
            {
                Self::Transient
            }
            code => match &code.code()[..2] {
                "22" | "23" => Self::Row,
                "08" | "25" | "26" | "40" | "53" | "57" | "58" => Self::Transient,
                // A refused login, as while its password is being rotated; not the error of a trigger.
                "28" if refusal.parsed_severity() == Some(Severity::Fatal) => Self::Transient,
                _ => Self::Unclear,
            },
        }
    }
}
