//! The errors of a claim.

use deadpool_postgres::PoolError;

use crate::{
    claim::DatabaseFault,
    fleet::OtherBucket,
    migrate::SchemaError,
    postgres::{PgError, Unreadable},
    worker::batch::lock::LockError,
};

/// Why nothing was claimed.
#[derive(thiserror::Error, Debug)]
pub enum ClaimError {
    /// The claim may have been committed; if so, it is an unconfirmed claim.
    #[error("claiming failed: {0}")]
    Postgres(#[from] PgError),
    /// The database was migrated while this worker ran.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The database was bound to another bucket while this worker ran.
    #[error(transparent)]
    Bucket(#[from] OtherBucket),
    /// A column of pastes was altered while this worker ran.
    #[error("claiming failed: {0}")]
    Unreadable(#[from] Unreadable),
    /// Fewer rows are marked than were picked: a claim row by row finds out which.
    #[error(
        "claiming failed: a trigger or rule on pastes swallows or undoes the UPDATE that marks \
         some of them"
    )]
    Swallowed,
    /// Marked rows have another time than their claim.
    #[error(
        "claiming failed: a trigger on pastes changes deletion_initiated_at, which a claim needs to \
         recognise its rows; drop the trigger, or exclude that column from it"
    )]
    Retimed,
    /// Every paste waits for a lock, or takes too long.
    #[error("claiming failed: {0}")]
    Waiting(String),
    /// Not one paste can be marked.
    #[error("claiming failed: {0}")]
    Database(DatabaseFault),
    /// Redis is unavailable, and the settings require the lock. Nothing was tried in Postgres.
    #[error("claiming failed: Redis is unavailable ({0}), and lock.when_unavailable is \"wait\"")]
    NoLock(LockError),
}

impl From<tokio_postgres::Error> for ClaimError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error.into())
    }
}

impl From<PoolError> for ClaimError {
    fn from(error: PoolError) -> Self {
        Self::Postgres(error.into())
    }
}

impl ClaimError {
    /// Returns whether waiting cannot help: a missing privilege, for example, or another schema.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Postgres(error) => error.is_permanent(),
            Self::Schema(_)
            | Self::Bucket(_)
            | Self::Unreadable(_)
            | Self::Database(_)
            | Self::Retimed => true,
            Self::NoLock(_) | Self::Swallowed | Self::Waiting(_) => false,
        }
    }

    /// Returns whether single rows may be the cause, so that a claim row by row is worthwhile.
    pub(super) fn may_be_a_row(&self) -> bool {
        match self {
            Self::Postgres(error) => error.may_be_a_row(),
            Self::Swallowed => true,
            _ => false,
        }
    }
}
