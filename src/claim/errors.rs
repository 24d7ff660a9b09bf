//! Why a step of a batch ends early.

use super::Fence;
use crate::postgres::PgError;

/// The claim was reset and is no longer this worker's. Other workers will process its rows.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("lost the lease of claim {}: it was reset, and other workers will process its pastes", .0.claim)]
pub struct LeaseLost(pub Fence);

/// One row after another fails and none succeeds: the cause is the database, not the rows.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
#[error(
    "every paste fails ({} in a row): {error}; check the triggers, rules and rights of pastes and \
     content", .pastes.len()
)]
pub struct DatabaseFault {
    /// The error of the paste that was tried last.
    pub error: String,
    /// The pastes that were tried one by one, with their errors.
    pub pastes: Vec<(String, String)>,
}

/// Why a step of a batch ended early.
#[derive(thiserror::Error, Debug)]
pub enum StepError {
    /// The claim was reset: there is nothing left to release.
    #[error(transparent)]
    LeaseLost(#[from] LeaseLost),
    /// An outage, denied credentials, a deadlock or a timeout: no row is at fault, and a retry may
    /// succeed.
    #[error("{0}")]
    Transient(String),
    /// A missing privilege, for example: no row is at fault, and only an operator can fix it.
    #[error("{0}")]
    Permanent(String),
    /// Permanent as well, found by trying rows one by one.
    #[error(transparent)]
    Database(#[from] DatabaseFault),
    /// The safety brake: the run would delete suspiciously many pastes whose content is missing.
    #[error("{0}")]
    Brake(String),
}

impl From<PgError> for StepError {
    fn from(error: PgError) -> Self {
        match error.is_permanent() {
            true => Self::Permanent(error.to_string()),
            false => Self::Transient(error.to_string()),
        }
    }
}
