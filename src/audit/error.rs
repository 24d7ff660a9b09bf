//! What can keep an audit from going on.

use tokio_postgres::error::SqlState;

use crate::{
    objects::ObjectsError,
    postgres::{describe, is_row_security, remedy},
};

#[derive(thiserror::Error, Debug)]
pub enum AuditError {
    #[error("Postgres: {}; {}", describe(.0), what_to_do(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Objects(#[from] ObjectsError),
}

impl AuditError {
    /// The page can be done again on another connection.
    pub(super) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code() {
                // Cut off by an administrator, by a shutdown, or starting up again.
                Some(code) => code.code().starts_with("57P") || code.code().starts_with("08"),
                None => true,
            },
            Self::Objects(_) => false,
        }
    }
}

/// Somebody else holds a row, and longer than we wait.
pub(super) fn is_held(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED))
}

fn what_to_do(error: &tokio_postgres::Error) -> &'static str {
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) if !is_row_security(error) => {
            "grant this login the role cleanup_auditor (`cleanupctl migrate --roles` makes it)"
        }
        _ => remedy(error),
    }
}
