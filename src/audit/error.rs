//! What can keep an audit from going on.

use tokio_postgres::error::SqlState;

use crate::{
    objects::ObjectsError,
    postgres::{Fault, describe, is_row_security, remedy},
};

/// Less than Postgres' deadlock_timeout: holding some rows and waiting for others, we give up before
/// a writer with several puts in a transaction is chosen as the victim.
pub(super) const TOGETHER: &str = "SET LOCAL lock_timeout = '200ms'";
/// Alone it holds nothing while it waits.
pub(super) const ALONE: &str = "SET LOCAL lock_timeout = '1s'";

#[derive(thiserror::Error, Debug)]
pub enum AuditError {
    #[error("Postgres: {}; {}", describe(.0), what_to_do(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The dependencies are not (or no longer) what they must be.
    #[error("{0}")]
    Refused(String),
}

impl AuditError {
    /// The page can be done again on another connection.
    pub(super) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code().map(SqlState::code) {
                // Cut off by an administrator, by a shutdown, starting up again, or for having
                // been silent in a transaction for too long.
                Some(code) => code.starts_with("57P") || code.starts_with("08") || code == "25P03",
                None => true,
            },
            Self::Objects(_) | Self::Refused(_) => false,
        }
    }
}

/// What concerns single rows: those beside them can go on.
pub(super) enum RepairError {
    /// Somebody else holds a row, and longer than we wait.
    Held,
    /// Postgres does not take it, and says why.
    Refused(String),
}

/// `None`: it concerns all of them.
pub(super) fn repair_error(error: &tokio_postgres::Error) -> Option<RepairError> {
    match error.code()? {
        &SqlState::LOCK_NOT_AVAILABLE
        | &SqlState::T_R_DEADLOCK_DETECTED
        // It took too long.
        | &SqlState::QUERY_CANCELED => Some(RepairError::Held),
        _ if Fault::of(error) == Fault::Row => {
            Some(RepairError::Refused(format!("Postgres refuses its repair: {}", describe(error))))
        }
        _ => None,
    }
}

fn what_to_do(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) if !is_row_security(error) => {
            "grant this login the role cleanup_auditor (`cleanupctl migrate --roles` makes it)"
        }
        _ => remedy(error),
    }
}
