//! The errors that end an audit, and those that concern single rows.

use tokio_postgres::error::SqlState;

use crate::{
    objects::ObjectsError,
    postgres::{Fault, describe, is_row_security, remedy},
};

/// For several rows: shorter than Postgres' deadlock_timeout. An audit that has locked some rows and
/// waits for others gives up before a writer with several puts in a transaction becomes the victim.
pub(super) const LOCK_TIMEOUT_MANY: &str = "SET LOCAL lock_timeout = '200ms'";
/// For one row: no other row is locked during the wait.
pub(super) const LOCK_TIMEOUT_ONE: &str = "SET LOCAL lock_timeout = '1s'";

/// An error that ends the audit.
#[derive(thiserror::Error, Debug)]
pub enum AuditError {
    /// A query failed, or the connection was lost.
    #[error("Postgres: {}; {}", describe(.0), what_to_do(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// The bucket could not be listed, or its objects could not be deleted.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// A precondition does not hold (any more), or the fleet is paused.
    #[error("{0}")]
    Refused(String),
}

impl AuditError {
    /// Whether the page can be repeated over another connection.
    pub(super) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code().map(SqlState::code) {
                // Terminated by an administrator, by a shutdown, during startup, or because the
                // session was idle in a transaction for too long.
                Some(code) => code.starts_with("57P") || code.starts_with("08") || code == "25P03",
                None => true,
            },
            Self::Objects(_) | Self::Refused(_) => false,
        }
    }
}

/// An error of single rows: the others can still be repaired.
pub(super) enum RepairError {
    /// Another transaction has locked the row for longer than the timeout.
    Locked,
    /// Postgres refuses the change, for this reason.
    Refused(String),
}

/// Classifies an error of a repair. `None`: it is not about single rows.
pub(super) fn repair_error(error: &tokio_postgres::Error) -> Option<RepairError> {
    match error.code()? {
        &SqlState::LOCK_NOT_AVAILABLE
        | &SqlState::T_R_DEADLOCK_DETECTED
        // statement_timeout.
        | &SqlState::QUERY_CANCELED => Some(RepairError::Locked),
        _ if Fault::of(error) == Fault::Row => {
            Some(RepairError::Refused(format!("Postgres refuses the repair: {}", describe(error))))
        }
        _ => None,
    }
}

fn what_to_do(error: &tokio_postgres::Error) -> &str {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) if !is_row_security(error) => {
            "grant this login the role cleanup_auditor (`cleanupctl migrate --roles` creates it)"
        }
        _ => remedy(error),
    }
}
