//! What a run did and why it stopped, as JSON prints it.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use uuid::Uuid;

use super::Left;

/// Why a run stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBecause {
    Drained,
    Limit,
    Deadline,
    Signal,
    Paused,
    /// Nothing is due, but a worker without a heartbeat has claimed expired pastes.
    DeadWorker,
    /// Nothing is due, but expired pastes are in progress without an open claim.
    Stranded,
    Brake,
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
    pub claim: Duration,
    pub decrement: Duration,
    pub delete: Duration,
    pub evict: Duration,
    pub finish: Duration,
    pub lock_wait: Duration,
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
    pub count: u64,
    pub ms: u64,
    /// Share of the summed time of all phases, 0 to 1. Batches overlap, so that sum is longer than
    /// the run.
    pub share: f64,
}

/// Where the time went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Phases {
    pub lock: Phase,
    pub claim: Phase,
    pub decrement: Phase,
    pub delete: Phase,
    pub evict: Phase,
    pub finish: Phase,
}

/// The result of a run, for people and (as JSON) for scripts.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub worker: Uuid,
    /// When the run ended, by the clock of its machine (RFC 3339).
    pub ended_at: String,
    pub stopped_because: StoppedBecause,
    pub error: Option<String>,
    pub rows_deleted: u64,
    pub objects_deleted: u64,
    pub bytes_freed: u64,
    pub batches: u64,
    pub elapsed_ms: u64,
    pub rows_per_second: f64,
    pub rows_failed: u64,
    /// Pastes of this run's batches that another program deleted meanwhile.
    pub rows_deleted_by_others: u64,
    pub claims_reset_at_start: u64,
    pub claims_released: u64,
    pub leases_lost: u64,
    pub drift_repaired: u64,
    pub claims_without_lock: u64,
    pub evictions_failed: u64,
    /// What the run waited for, and how long. Batches in flight went on meanwhile.
    pub waited_ms: BTreeMap<&'static str, u64>,
    pub phases: Phases,
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
        if matches!(self.stopped_because, StoppedBecause::Drained | StoppedBecause::Stranded) {
            (self.stopped_because, self.error) = (StoppedBecause::Failed, Some(reason));
        }
    }

    /// Turns the run into a failed one. Keeps the earlier error, too.
    pub(in crate::worker) fn fail(&mut self, reason: String) {
        let earlier = self.error.take().map(|error| format!("{error}; ")).unwrap_or_default();
        self.error = Some(format!("{earlier}{reason}"));
        self.stopped_because = StoppedBecause::Failed;
    }
}
