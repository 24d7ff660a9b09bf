//! The running stats of a worker, shared by all its batches.

use std::{collections::BTreeMap, sync::MutexGuard, time::Duration};

use chrono::{SecondsFormat, Utc};
use tokio::time::Instant;
use tracing::warn;
use uuid::Uuid;

use super::summary::{PhaseTimes, Phases, StoppedBecause, Summary, ms};
use crate::{claim::reset::Reset, mutex::Mutex};

/// Counts what the batches of a worker do.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Stats>);

/// What was counted.
#[derive(Debug, Default, Clone)]
pub(in crate::worker) struct Stats {
    pub rows: u64,
    pub rows_in_flight: u64,
    pub objects: u64,
    pub bytes: u64,
    pub batches: u64,
    pub released: u64,
    /// Rows of released claims that other transactions had locked at that moment.
    pub stranded: u64,
    pub lost: u64,
    pub drift: u64,
    pub without_lock: u64,
    pub evictions_failed: u64,
    pub failed: Vec<String>,
    pub failed_count: u64,
    pub gone: u64,
    /// Perhaps failed: their COMMIT may not have been answered.
    pub suspected: Vec<String>,
    pub phases: Phases,
    pub waited: BTreeMap<&'static str, Duration>,
    /// What the run waits for right now.
    pub waiting_for: Option<String>,
}

/// More failures than this are counted, not kept by name.
const FAILURES_BY_NAME: usize = 10_000;

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock()
    }

    pub(in crate::worker) fn stats(&self) -> Stats {
        self.lock().clone()
    }

    pub(in crate::worker) fn rows(&self) -> u64 {
        self.lock().rows
    }

    /// Returns how many rows are deleted or in flight.
    pub(in crate::worker) fn rows_taken(&self) -> u64 {
        let stats = self.lock();
        stats.rows + stats.rows_in_flight
    }

    pub(in crate::worker) fn batch_started(&self, rows: usize) {
        self.lock().rows_in_flight += rows as u64;
    }

    pub(in crate::worker) fn batch_ended(&self, rows: usize) {
        self.lock().rows_in_flight -= rows as u64;
    }

    /// Returns how often this worker has tried to claim.
    pub fn claims_tried(&self) -> u64 {
        self.lock().phases.lock.count
    }

    pub(in crate::worker) fn lock_waited(&self, time: Duration) {
        self.lock().phases.lock.add(time);
    }

    /// Logged once, not for every claim.
    pub(in crate::worker) fn lock_missing(&self, reason: &str) {
        let mut stats = self.lock();
        stats.without_lock += 1;
        if stats.without_lock == 1 {
            warn!("claiming without the Redis lock, which is slower but safe: {reason}");
        }
    }

    /// Shows what the run waits for from now on.
    pub(in crate::worker) fn wait_for(&self, reason: &str) -> Instant {
        self.lock().waiting_for = Some(reason.to_string());
        Instant::now()
    }

    /// The wait is over.
    pub(in crate::worker) fn waited(&self, what: &'static str, since: Instant) {
        let mut stats = self.lock();
        stats.waiting_for = None;
        *stats.waited.entry(what).or_default() += since.elapsed();
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
        let mut stats = self.lock();
        stats.released += reset.claims as u64;
        stats.stranded += reset.left as u64;
    }

    pub(in crate::worker) fn lost(&self) {
        self.lock().lost += 1;
    }

    pub(in crate::worker) fn gone(&self, rows: u64) {
        self.lock().gone += rows;
    }

    pub(in crate::worker) fn drifted(&self, content_rows: usize) {
        self.lock().drift += content_rows as u64;
    }

    pub(in crate::worker) fn failed(&self, pastes: impl IntoIterator<Item = String>) {
        let mut stats = self.lock();
        for short_code in pastes {
            stats.failed_count += 1;
            if stats.failed.len() < FAILURES_BY_NAME {
                stats.failed.push(short_code);
            }
        }
    }

    /// Must be called right before the COMMIT that fails them.
    pub(in crate::worker) fn suspected(&self, pastes: &[(String, String)]) {
        let mut stats = self.lock();
        let room = FAILURES_BY_NAME.saturating_sub(stats.suspected.len());
        stats.suspected.extend(pastes.iter().take(room).map(|(code, _)| code.clone()));
    }

    pub(in crate::worker) fn finished(
        &self,
        rows: u64,
        objects: usize,
        bytes: i64,
        times: &PhaseTimes,
    ) {
        let mut stats = self.lock();
        stats.batches += 1;
        stats.rows += rows;
        stats.objects += objects as u64;
        stats.bytes += u64::try_from(bytes).unwrap_or_default();
        stats.phases.decrement.add(times.decrement);
        stats.phases.delete.add(times.delete);
        stats.phases.evict.add(times.evict);
        stats.phases.finish.add(times.finish);
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
            ended_at: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            stopped_because,
            error,
            rows_deleted: self.rows,
            objects_deleted: self.objects,
            bytes_freed: self.bytes,
            batches: self.batches,
            elapsed_ms: ms(elapsed),
            rows_per_second: self.rows as f64 / elapsed.as_secs_f64().max(0.001),
            rows_failed: self.failed_count,
            rows_deleted_by_others: self.gone,
            claims_reset_at_start: 0,
            claims_released: self.released,
            leases_lost: self.lost,
            drift_repaired: self.drift,
            claims_without_lock: self.without_lock,
            evictions_failed: self.evictions_failed,
            waited_ms: self.waited.into_iter().map(|(what, time)| (what, ms(time))).collect(),
            phases: self.phases.with_shares(),
            left: None,
        }
    }
}
