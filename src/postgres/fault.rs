//! Whose problem is it that a statement failed? Judged by SQLSTATE, and by the table that it names.

use tokio_postgres::{Error, error::SqlState};

/// Tables in which no paste is ever to blame.
const OUR_OWN: [&str; 3] = ["deletion_claims", "cleanup_runs", "cleanup_unclaimable"];

/// What a failed statement says about the rows that it was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A row violates a constraint, or holds a value that cannot be worked with.
    Row,
    /// A row's or the whole database's: a trigger raised it, a right is missing. Other rows tell.
    Unclear,
    /// Another transaction has locked a row for longer than we wait.
    Locked,
    /// The statement took longer than `statement_timeout`.
    Slow,
    /// Postgres is away, full, read-only, shutting down, or chose us as a deadlock's victim.
    Transient,
}

impl Fault {
    pub fn of(error: &Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            return Self::Transient;
        };
        if refusal.table().is_some_and(|table| OUR_OWN.contains(&table)) {
            return Self::Transient;
        }
        match refusal.code() {
            &SqlState::LOCK_NOT_AVAILABLE => Self::Locked,
            &SqlState::QUERY_CANCELED => Self::Slow,
            // A plan whose tables were altered meanwhile. A trigger can raise this code, too.
            &SqlState::FEATURE_NOT_SUPPORTED
                if refusal.routine() == Some("RevalidateCachedQuery") =>
            {
                Self::Transient
            }
            code => match &code.code()[..2] {
                "22" | "23" => Self::Row,
                "08" | "25" | "26" | "40" | "53" | "57" | "58" => Self::Transient,
                _ => Self::Unclear,
            },
        }
    }
}
