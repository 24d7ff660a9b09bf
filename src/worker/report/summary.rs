//! What a run did: counted while it runs, told once when it ends.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use crate::claim::reset::Reset;

/// Why a run stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBecause {
    Drained,
    Limit,
    Deadline,
    Signal,
    Paused,
    /// Nothing is due, but a worker without a heartbeat holds expired pastes.
    DeadWorker,
    Brake,
    Failed,
}

impl StoppedBecause {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Limit => "limit",
            Self::Deadline => "deadline",
            Self::Signal => "signal",
            Self::Paused => "paused",
            Self::DeadWorker => "dead_worker",
            Self::Brake => "brake",
            Self::Failed => "failed",
        }
    }

    pub fn exit_code(self) -> u8 {
        match self {
            Self::Drained => 0,
            Self::Failed => 1,
            Self::Brake => 4,
            Self::Limit | Self::Deadline | Self::Signal | Self::Paused | Self::DeadWorker => 3,
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
    /// Of all phases' time; several batches run at once, so times add up to more than the run's.
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

/// What is not done when a run ends.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Left {
    /// Due right now; counted up to a cap.
    pub due: i64,
    pub backing_off: i64,
    pub dead_letters: i64,
    /// Due, but Postgres does not let them be claimed.
    pub unclaimable: i64,
    pub claimed_by_others: i64,
}

/// The result of a run, for people and (as JSON) for scripts.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub worker: Uuid,
    pub stopped_because: StoppedBecause,
    pub error: Option<String>,
    pub rows_deleted: u64,
    pub objects_deleted: u64,
    pub bytes_freed: u64,
    pub batches: u64,
    pub elapsed_ms: u64,
    pub rows_per_second: f64,
    pub rows_failed: u64,
    /// Pastes of this run's batches that something else deleted meanwhile.
    pub rows_gone: u64,
    pub claims_reset_at_start: u64,
    pub claims_released: u64,
    pub claims_lost: u64,
    pub drift_repaired: u64,
    pub claims_without_lock: u64,
    pub evictions_failed: u64,
    /// What the run waited for, and how long. Batches in flight went on meanwhile.
    pub waited_ms: BTreeMap<&'static str, u64>,
    pub phases: Phases,
    pub left: Option<Left>,
}

/// The running figures, shared by all batches.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Stats>);

#[derive(Debug, Default, Clone)]
pub(in crate::worker) struct Stats {
    pub rows: u64,
    pub objects: u64,
    pub bytes: u64,
    pub batches: u64,
    pub released: u64,
    /// Rows of claims that were released, which others held at that moment.
    pub stranded: u64,
    pub lost: u64,
    pub drift: u64,
    pub without_lock: u64,
    pub evictions_failed: u64,
    pub failed: Vec<String>,
    pub failed_count: u64,
    pub gone: u64,
    /// Perhaps failed: failed right before a COMMIT whose answer may never have come.
    pub suspected: Vec<String>,
    pub phases: Phases,
    pub waited: BTreeMap<&'static str, Duration>,
    /// What the run waits for right now.
    pub waiting_for: Option<String>,
}

/// More failures than this are counted, not remembered by name.
const FAILURES_BY_NAME: usize = 10_000;

pub(in crate::worker) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Phase {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.ms += ms(time);
    }
}

impl Phases {
    fn with_shares(mut self) -> Self {
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

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::worker) fn figures(&self) -> Stats {
        self.lock().clone()
    }

    pub(in crate::worker) fn rows(&self) -> u64 {
        self.lock().rows
    }

    /// How often this worker has tried to claim.
    pub fn claims_tried(&self) -> u64 {
        self.lock().phases.lock.count
    }

    pub(in crate::worker) fn lock_waited(&self, time: Duration) {
        self.lock().phases.lock.add(time);
    }

    /// Said once: a nightly mail with a thousand equal lines helps nobody.
    pub(in crate::worker) fn lock_missing(&self, reason: &str) {
        let mut figures = self.lock();
        figures.without_lock += 1;
        if figures.without_lock == 1 {
            warn!(reason, "claiming without the Redis lock ({reason}): slower, but as safe");
        }
    }

    /// Shows what the run waits for from now on.
    pub(in crate::worker) fn wait_for(&self, reason: &str) -> Instant {
        self.lock().waiting_for = Some(reason.to_string());
        Instant::now()
    }

    /// The wait is over.
    pub(in crate::worker) fn waited(&self, what: &'static str, since: Instant) {
        let mut figures = self.lock();
        figures.waiting_for = None;
        *figures.waited.entry(what).or_default() += since.elapsed();
    }

    pub(in crate::worker) fn waiting_for(&self) -> Option<String> {
        self.lock().waiting_for.clone()
    }

    pub(in crate::worker) fn claimed(&self, time: Duration) {
        self.lock().phases.claim.add(time);
    }

    pub(in crate::worker) fn eviction_failed(&self) {
        self.lock().evictions_failed += 1;
    }

    pub(in crate::worker) fn released(&self, reset: &Reset) {
        let mut figures = self.lock();
        figures.released += reset.claims as u64;
        figures.stranded += reset.left as u64;
    }

    pub(in crate::worker) fn lost(&self) {
        self.lock().lost += 1;
    }

    pub(in crate::worker) fn gone(&self, rows: u64) {
        self.lock().gone += rows;
    }

    pub(in crate::worker) fn drifted(&self, bodies: usize) {
        self.lock().drift += bodies as u64;
    }

    pub(in crate::worker) fn failed(&self, pastes: impl IntoIterator<Item = String>) {
        let mut figures = self.lock();
        for short_code in pastes {
            figures.failed_count += 1;
            if figures.failed.len() < FAILURES_BY_NAME {
                figures.failed.push(short_code);
            }
        }
    }

    /// To be called right before the COMMIT that fails them.
    pub(in crate::worker) fn suspected(&self, pastes: &[(String, String)]) {
        let mut figures = self.lock();
        let room = FAILURES_BY_NAME.saturating_sub(figures.suspected.len());
        figures.suspected.extend(pastes.iter().take(room).map(|(code, _)| code.clone()));
    }

    pub(in crate::worker) fn finished(
        &self,
        rows: u64,
        objects: usize,
        bytes: i64,
        times: &PhaseTimes,
    ) {
        let mut figures = self.lock();
        figures.batches += 1;
        figures.rows += rows;
        figures.objects += objects as u64;
        figures.bytes += u64::try_from(bytes).unwrap_or_default();
        figures.phases.decrement.add(times.decrement);
        figures.phases.delete.add(times.delete);
        figures.phases.evict.add(times.evict);
        figures.phases.finish.add(times.finish);
    }
}

impl Stats {
    pub(in crate::worker) fn into_summary(
        self,
        worker: Uuid,
        stopped_because: StoppedBecause,
        error: Option<String>,
        elapsed: Duration,
    ) -> Summary {
        Summary {
            worker,
            stopped_because,
            error,
            rows_deleted: self.rows,
            objects_deleted: self.objects,
            bytes_freed: self.bytes,
            batches: self.batches,
            elapsed_ms: ms(elapsed),
            rows_per_second: self.rows as f64 / elapsed.as_secs_f64().max(0.001),
            rows_failed: self.failed_count,
            rows_gone: self.gone,
            claims_reset_at_start: 0,
            claims_released: self.released,
            claims_lost: self.lost,
            drift_repaired: self.drift,
            claims_without_lock: self.without_lock,
            evictions_failed: self.evictions_failed,
            waited_ms: self.waited.into_iter().map(|(what, time)| (what, ms(time))).collect(),
            phases: self.phases.with_shares(),
            left: None,
        }
    }
}
