//! The domain: a claim on a batch of pastes, its fence, and what it leaves unreferenced.

pub mod reset;

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
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
    pub pending_s3_key: Option<String>,
    pub attempts: i16,
    /// A step failed for this row alone, in an earlier attempt.
    pub failed_before: bool,
    /// How long it had been expired when it was claimed, by Postgres' clock.
    pub overdue: Duration,
}

impl Paste {
    /// How small its batches are: the deaths that it was claimed at. A row that failed by itself harms
    /// nobody beside it.
    pub fn class(&self) -> i16 {
        if self.failed_before { 0 } else { self.attempts }
    }
}

/// A batch that this worker holds: the lease, the fence and the mutex of its rows.
#[derive(Debug, Clone)]
pub struct Claim {
    pub fence: Fence,
    pub pastes: Vec<Paste>,
    /// When the claim was asked for, by this process' clock: its first heartbeat is no older. Taken
    /// after the wait for the lock, which may be longer than `stuck_after`.
    pub asked_at: Instant,
    /// The latest due time in the batch: the next low-water mark.
    pub last_due: SystemTime,
    /// How long the lock was waited for and held; zero without one.
    pub lock_wait: Duration,
    pub lock_hold: Duration,
}

/// An object that must go, and the paste that owes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingDelete {
    pub pending_owner: String,
    pub s3_key: String,
}

/// What a decrement did: which bodies lost their last reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decremented {
    pub unreferenced: Vec<PendingDelete>,
    pub bytes: i64,
    /// Pastes failed because their own row or body could not be worked on, with the reason.
    pub failed: Vec<(String, String)>,
    /// Bodies whose count disagreed with the tables and was repaired.
    pub drift: usize,
    /// Whether its keys may have other spellings in content: asked again before they are deleted.
    pub keys_are_odd: bool,
}

/// The claim is not this worker's any more: somebody reset it. Its rows are in good hands.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("claim {} was reset; its pastes belong to whoever claims them next", .0.claim)]
pub struct LostClaim(pub Fence);

/// One row after the other fails, and none succeeds: not the rows are bad, but the database.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
#[error(
    "every paste fails, {} in a row: {error}; check the triggers, rules and rights of pastes and \
     content", .pastes.len()
)]
pub struct DatabaseFault {
    pub error: String,
    /// Those that were tried one by one, with their errors.
    pub pastes: Vec<(String, String)>,
}

/// Why a step of a batch ended early.
#[derive(thiserror::Error, Debug)]
pub enum StepError {
    #[error(transparent)]
    Lost(#[from] LostClaim),
    /// Nobody's row is at fault: outage, denied credentials, deadlock, timeout.
    #[error("{0}")]
    Transient(String),
    /// Nobody's row is at fault, and waiting does not help: a missing privilege, say.
    #[error("{0}")]
    Permanent(String),
    /// The same, found out by trying rows one by one.
    #[error(transparent)]
    Database(#[from] DatabaseFault),
    /// The run would delete pastes whose content is missing, suspiciously many of them.
    #[error("{0}")]
    Brake(String),
}

/// The highest class whose batches still have company: a batch is a tenth the size for each attempt
/// that ended with its worker. Rows of a higher one run alone in their process.
pub fn attempts_with_company(batch_size: u32) -> i32 {
    let mut attempts = 0;
    while batch_size / 10_u32.pow(attempts + 1) >= 2 {
        attempts += 1;
    }
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

/// A row that came back from silent workers often enough to be claimed by itself.
pub fn must_run_alone(batch_size: u32, class: i16) -> bool {
    i32::from(class) > attempts_with_company(batch_size)
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    #[test]
    fn batches_shrink_to_one_by_tens() {
        assert_eq!(attempts_with_company(1000), 2);
        assert!(!must_run_alone(1000, 2));
        assert!(must_run_alone(1000, 3));
        assert!(must_run_alone(5, 1));
        assert!(!must_run_alone(1, 0));
    }
    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(0),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_row_runs_alone_exactly_when_its_share_of_the_batch_is_one_or_less(
            batch_size in 1..=10_000_u32,
            attempts in 1..=12_i16,
        ) {
            let share = (0..attempts).fold(batch_size, |size, _| size / 10);
            prop_assert_eq!(must_run_alone(batch_size, attempts), share <= 1);
            prop_assert!(!must_run_alone(batch_size, 0));
        }

        #[test]
        fn another_attempt_never_brings_company_back_and_a_larger_batch_never_takes_it(
            batch_size in 1..10_000_u32,
            attempts in 0..32_767_i16,
        ) {
            let alone = must_run_alone(batch_size, attempts);
            prop_assert!(!alone || must_run_alone(batch_size, attempts + 1));
            prop_assert!(alone || !must_run_alone(batch_size + 1, attempts));
        }
    }
}
