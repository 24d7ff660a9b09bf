//! The domain: a claim on a batch of pastes, its fence, and what it dooms.

use std::time::SystemTime;

use uuid::Uuid;

/// What every write of a batch is fenced on. The id alone tells two claims of one worker apart;
/// the worker's UUID is needed because after a crash that loses commits Postgres can hand out the
/// same id again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    pub claim: i64,
    pub worker: Uuid,
}

/// A claimed paste, as the claim's own RETURNING said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paste {
    pub short_code: String,
    /// NULL: this row no longer holds a reference.
    pub content_hash: Option<Vec<u8>>,
    /// This row still owes S3 the deletion of that object.
    pub doomed_key: Option<String>,
    pub attempts: i16,
}

/// A batch that this worker holds: the lease, the fence and the mutex of its rows.
#[derive(Debug, Clone)]
pub struct Claim {
    pub fence: Fence,
    pub pastes: Vec<Paste>,
    /// The latest due time in the batch: the next low-water mark.
    pub last_due: SystemTime,
}

/// An object that must go, and the paste that owes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    pub heir: String,
    pub s3_key: String,
}

/// What a release did: which bodies lost their last reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    pub doomed: Vec<Doomed>,
    pub bytes: i64,
    /// Pastes detached because their own row or body could not be worked on, with the reason.
    pub detached: Vec<(String, String)>,
    /// Bodies whose count disagreed with the tables and was repaired.
    pub drift: usize,
}

/// The claim is not this worker's any more: somebody reset it. Its rows are in good hands.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("claim {} was reset; its pastes belong to whoever claims them next", .0.claim)]
pub struct LostClaim(pub Fence);

/// Why a step of a batch ended early.
#[derive(thiserror::Error, Debug)]
pub enum StepError {
    #[error(transparent)]
    Lost(#[from] LostClaim),
    /// Nobody's row is at fault: outage, denied credentials, deadlock, timeout.
    #[error("{0}")]
    Surroundings(String),
}
