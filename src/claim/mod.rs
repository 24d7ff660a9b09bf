//! The domain types: a claim on a batch of pastes, its fence, and the objects that it must delete.
//!
//! Worker, watchdog and `cleanupctl reset` share these types, and [`reset`], which ends a claim and
//! makes its pastes due again.

mod errors;
mod fence;
mod paste;
pub mod reset;

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

pub use self::{
    errors::{DatabaseFault, LeaseLost, StepError},
    fence::Fence,
    paste::{Paste, max_shared_attempts, must_run_alone},
};

/// A batch that this worker has claimed: the lease, the fence and the mutex of its rows.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The condition of every later write of the batch.
    pub fence: Fence,
    /// At least one. Pastes that leave the claim later stay in this list.
    pub pastes: Vec<Paste>,
    /// When the claim was requested, by this process' clock: its first heartbeat is not older. Taken
    /// after the wait for the lock, which may be longer than `stuck_after`.
    pub requested_at: Instant,
    /// When the rows were marked, by Postgres' clock.
    pub claimed_at: SystemTime,
    /// The earliest due time in the batch.
    pub first_due: SystemTime,
    /// The latest due time in the batch: the next low-water mark.
    pub last_due: SystemTime,
    /// How long the claim waited for the lock; zero without one.
    pub lock_wait: Duration,
    /// How long the claim held the lock; zero without one.
    pub lock_hold: Duration,
}

/// A pending object delete: an object that must be deleted, and the paste that must see to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDelete {
    /// The short code of the paste. It takes over the key if the object cannot be deleted.
    pub pending_owner: String,
    /// The full key of the object in the bucket.
    pub s3_key: String,
}

/// The result of a decrement: the content that lost its last reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decremented {
    /// Its objects, each with a paste of this batch.
    pub unreferenced: Vec<PendingDelete>,
    /// Its size: the sum of `content.size_bytes`, where NULL counts as 0.
    pub bytes: i64,
    /// Pastes that failed because their own row or content row could not be changed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Content rows whose `ref_count` was wrong and was repaired, and hashes without a content row.
    pub drift: usize,
    /// Some content has keys that are not canonical, so the keys in `unreferenced` may be other
    /// spellings of them: checked again before the objects are deleted.
    pub keys_are_odd: bool,
}
