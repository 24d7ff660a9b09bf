//! What a run did and why it stopped, as JSON prints it.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use uuid::Uuid;

use super::Left;

/// Why a run stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBecause {
    /// Nothing is due. Pastes that back off may be left.
    Drained,
    /// As many pastes as `--limit` allows were deleted.
    Limit,
    /// The time of `--run-time` or `--until` was reached.
    Deadline,
    /// SIGINT or SIGTERM.
    Signal,
    /// An operator paused the fleet with `cleanupctl pause`.
    Paused,
    /// Nothing is due, but a worker without a heartbeat has claimed expired pastes.
    DeadWorker,
    /// Nothing is due, but expired pastes are in progress without an open claim.
    Stranded,
    /// The safety brake: too much would be deleted, or too many content rows are missing.
    Brake,
    /// An error that needs an operator, an outage that was too long, or pastes that failed.
    Failed,
}

impl StoppedBecause {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Limit => "limit",
            Self::Deadline => "deadline",
            Self::Signal => "signal",
            Self::Paused => "paused",
            Self::DeadWorker => "dead_worker",
            Self::Stranded => "stranded",
            Self::Brake => "brake",
            Self::Failed => "failed",
        }
    }

    /// Returns the exit code of `cleanup-worker run`.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Drained => 0,
            Self::Failed => 1,
            Self::Brake => 4,
            Self::Limit | Self::Deadline | Self::Signal | Self::Paused => 3,
            Self::DeadWorker | Self::Stranded => 3,
        }
    }
}

/// How long the steps of one batch took.
#[derive(Debug, Clone, Copy, Default)]
pub struct PhaseTimes {
    /// From its request, after the wait for the lock, to the start of the decrement.
    pub claim: Duration,
    /// The decrement, with its retries.
    pub decrement: Duration,
    /// The delete of the objects, with retries and waits for the S3 pace.
    pub delete: Duration,
    /// The eviction from the read cache; almost nothing if there is no cache.
    pub evict: Duration,
    /// The finish, with its retries; zero before it.
    pub finish: Duration,
    /// How long the claim waited for the lock; zero without one.
    pub lock_wait: Duration,
    /// How long the claim held the lock; zero without one. Mostly a part of `claim`.
    pub lock_hold: Duration,
}

impl PhaseTimes {
    pub(in crate::worker) fn before_finish(&self) -> [i32; 6] {
        [self.claim, self.decrement, self.delete, self.evict, self.lock_wait, self.lock_hold]
            .map(|time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX))
    }
}

/// One step of the batch, over the whole run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Phase {
    /// How often it was done: see [`Phases`].
    pub count: u64,
    /// Its time over all batches, in milliseconds.
    pub ms: u64,
    /// Share of the summed time of all phases, 0 to 1. Batches overlap, so that sum is longer than
    /// the run.
    pub share: f64,
}

/// Where the time went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Phases {
    /// Waits for the Redis lock, one for each try to claim.
    pub lock: Phase,
    /// Claim transactions that were committed, without the wait for the lock.
    pub claim: Phase,
    /// Decrements of finished batches; the following steps, too, count only these.
    pub decrement: Phase,
    /// Deletes of objects, including waits for the S3 pace.
    pub delete: Phase,
    /// Evictions from the read cache, even if there is none.
    pub evict: Phase,
    /// Finishes, including retries.
    pub finish: Phase,
}

/// The result of a run, for people and (as JSON) for scripts.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The UUID that the worker chose for this run.
    pub worker: Uuid,
    /// When the run ended, by the clock of its machine (RFC 3339).
    pub ended_at: String,
    /// Decides the exit code.
    pub stopped_because: StoppedBecause,
    /// What an operator should know about the reason; `None` if it needs no explanation.
    pub error: Option<String>,
    /// Pastes that finished batches deleted, or turned into tombstones.
    pub rows_deleted: u64,
    /// Objects that finished batches deleted from S3.
    pub objects_deleted: u64,
    /// Size of the content that finished batches left unreferenced, by `content.size_bytes`.
    pub bytes_freed: u64,
    /// Batches that were finished.
    pub batches: u64,
    /// Duration in milliseconds, from the sweep at the start to the end of the last batch.
    pub elapsed_ms: u64,
    /// `rows_deleted` divided by that duration, which includes all waits.
    pub rows_per_second: f64,
    /// Pastes that failed in this run and still exist.
    pub rows_failed: u64,
    /// Pastes of this run's batches that another program deleted meanwhile.
    pub rows_deleted_by_others: u64,
    /// Claims whose lease had expired before this run; its sweep reset them.
    pub claims_reset_at_start: u64,
    /// Claims that this run released unfinished, because of an error or a signal.
    pub claims_released: u64,
    /// Claims that were reset, or had no heartbeat for `stuck_after`, during their batch.
    pub leases_lost: u64,
    /// Content rows whose `ref_count` was wrong, and hashes that had no content row.
    pub drift_repaired: u64,
    /// Tries to claim without the Redis lock, whether they found pastes or not.
    pub claims_without_lock: u64,
    /// Batches whose cache keys could not all be evicted.
    pub evictions_failed: u64,
    /// What the run waited for, and how long. Batches in flight went on meanwhile.
    pub waited_ms: BTreeMap<&'static str, u64>,
    /// Where the time of the batches went.
    pub phases: Phases,
    /// What is left in the table; `None` if Postgres did not answer at the end.
    pub left: Option<Left>,
}

pub(in crate::worker) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Phase {
    pub(super) fn add(&mut self, time: Duration) {
        self.count += 1;
        self.ms += ms(time);
    }
}

impl Phases {
    pub(super) fn with_shares(mut self) -> Self {
        let all = [
            &mut self.lock,
            &mut self.claim,
            &mut self.decrement,
            &mut self.delete,
            &mut self.evict,
            &mut self.finish,
        ];
        let total: u64 = all.iter().map(|phase| phase.ms).sum();
        for phase in all {
            phase.share = phase.ms as f64 / total.max(1) as f64;
        }
        self
    }

    /// In the order in which a batch goes through them.
    pub fn named(&self) -> [(&'static str, &Phase); 6] {
        [
            ("lock", &self.lock),
            ("claim", &self.claim),
            ("decrement", &self.decrement),
            ("delete", &self.delete),
            ("evict", &self.evict),
            ("finish", &self.finish),
        ]
    }
}

impl Summary {
    /// Turns a run that left nothing due into a failed one.
    pub(in crate::worker) fn fail_if_drained(&mut self, reason: String) {
        match self.stopped_because {
            StoppedBecause::Drained | StoppedBecause::DeadWorker | StoppedBecause::Stranded => {
                self.fail(reason);
            }
            _ => {}
        }
    }

    /// Turns the run into a failed one. Keeps the earlier error, too.
    pub(in crate::worker) fn fail(&mut self, reason: String) {
        let earlier = self.error.take().map(|error| format!("{error}; ")).unwrap_or_default();
        self.error = Some(format!("{earlier}{reason}"));
        self.stopped_because = StoppedBecause::Failed;
    }
}
