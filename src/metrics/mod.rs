//! Every metric, declared once with its help. Nothing here asks the database: the watchdog looks once a
//! tick, and a scrape shows what it saw.
//!
//! To add a counter: count it in a worker's record or in `watchdog/count_claims.sql`, and
//! declare it in `COUNTERS`.

mod render;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{fleet::snapshot::Snapshot, objects::ERROR_CLASSES, watchdog::prune::Pruned};

/// Upper bounds of the ages at deletion, in seconds: a minute to a month.
pub const AGE_BOUNDS_S: [f64; 11] = [
    60.0,
    300.0,
    900.0,
    3600.0,
    10_800.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    604_800.0,
    2_592_000.0,
];
/// Upper bounds of a batch's durations, in milliseconds.
pub const DURATION_BOUNDS_MS: [f64; 12] =
    [5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0];

/// The fleet's totals, by name and label: see `cleanup_totals`.
pub type Totals = BTreeMap<(String, String), f64>;

/// A total that only grows.
struct Counter {
    metric: &'static str,
    help: &'static str,
    /// Its name in `cleanup_totals`.
    total: &'static str,
    label: Option<(&'static str, &'static [&'static str])>,
}

const COUNTERS: [Counter; 15] = [
    plain("cleanup_pastes_deleted_total", "pastes_deleted", "Pastes erased."),
    plain("cleanup_objects_deleted_total", "objects_deleted", "Objects deleted from S3."),
    plain("cleanup_freed_bytes_total", "freed_bytes", "Size of the bodies that were deleted."),
    plain("cleanup_batches_total", "batches", "Batches finished."),
    plain(
        "cleanup_pastes_reset_total",
        "pastes_reset",
        "Pastes that came back with a reset claim.",
    ),
    plain("cleanup_claims_lost_total", "claims_lost", "Claims that a live worker found reset."),
    plain("cleanup_claims_without_lock_total", "claims_without_lock", "Claims made without Redis."),
    plain("cleanup_paste_failures_total", "paste_failures", "Pastes that failed and back off."),
    plain("cleanup_pastes_dead_lettered_total", "dead_letters", "Pastes that failed for good."),
    plain("cleanup_count_drift_total", "drift", "Wrong counts that decrements found and repaired."),
    plain("cleanup_cache_eviction_failures_total", "evictions_failed", "Batches not evicted."),
    Counter {
        metric: "cleanup_claims_reset_total",
        help: "Claims reset: their worker was silent, or released them.",
        total: "claims_reset",
        label: Some(("reason", &["lease_expired", "released"])),
    },
    Counter {
        metric: "cleanup_s3_errors_total",
        help: "Calls to S3 that failed, as a whole or for some keys, by class.",
        total: "s3_errors",
        label: Some(("class", &ERROR_CLASSES)),
    },
    Counter {
        metric: "cleanup_throttled_seconds_total",
        help: "Time in which runs claimed or deleted nothing on purpose, by reason.",
        total: "throttled_seconds",
        label: Some((
            "reason",
            &[
                "backing_off",
                "flag_file",
                "locked_rows",
                "max_rate",
                "replica_lag",
                "s3_pace",
                "dependency_unavailable",
            ],
        )),
    },
    Counter {
        metric: "cleanup_runs_total",
        help: "Runs that ended, by why they stopped.",
        total: "runs",
        label: Some((
            "stopped_because",
            &["drained", "limit", "deadline", "signal", "paused", "dead_worker", "brake", "failed"],
        )),
    },
];

const fn plain(metric: &'static str, total: &'static str, help: &'static str) -> Counter {
    Counter { metric, help, total, label: None }
}

/// How something is spread: totals by upper bound.
struct Histogram {
    metric: &'static str,
    help: &'static str,
    label: Option<&'static str>,
    /// Label values and their names in `cleanup_totals`.
    totals: &'static [(&'static str, &'static str)],
    bounds: &'static [f64],
    /// How many of the bounds' units are a second.
    units_per_second: f64,
}

const HISTOGRAMS: [Histogram; 4] = [
    Histogram {
        metric: "cleanup_paste_age_at_deletion_seconds",
        help: "From a paste's expiry to its erasure.",
        label: None,
        totals: &[("", "age")],
        bounds: &AGE_BOUNDS_S,
        units_per_second: 1.0,
    },
    Histogram {
        metric: "cleanup_batch_phase_duration_seconds",
        help: "How long the steps of a batch took.",
        label: Some("phase"),
        totals: &[
            ("claim", "phase_claim"),
            ("decrement", "phase_decrement"),
            ("delete", "phase_delete"),
            ("evict", "phase_evict"),
            ("finish", "phase_finish"),
        ],
        bounds: &DURATION_BOUNDS_MS,
        units_per_second: 1000.0,
    },
    Histogram {
        metric: "cleanup_lock_wait_seconds",
        help: "How long a claim waited for the Redis lock.",
        label: None,
        totals: &[("", "lock_wait")],
        bounds: &DURATION_BOUNDS_MS,
        units_per_second: 1000.0,
    },
    Histogram {
        metric: "cleanup_lock_hold_seconds",
        help: "How long a claim held the Redis lock.",
        label: None,
        totals: &[("", "lock_hold")],
        bounds: &DURATION_BOUNDS_MS,
        units_per_second: 1000.0,
    },
];

/// What it is right now.
struct Gauge {
    metric: &'static str,
    help: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
}

const GAUGES: [Gauge; 15] = [
    now(
        "cleanup_backlog_pastes",
        "Pastes that are due; exact up to 100,000, sampled beyond.",
        |f| Some(f.backlog as f64),
    ),
    now("cleanup_backlog_estimated", "1 while cleanup_backlog_pastes is an estimate.", |f| {
        Some(f64::from(f.backlog_estimated))
    }),
    now("cleanup_oldest_overdue_seconds", "For how long the oldest due paste is due.", |f| {
        Some(f.oldest_overdue_s.unwrap_or(0.0))
    }),
    now("cleanup_in_progress_pastes", "Pastes in open claims.", |f| Some(f.in_progress as f64)),
    now("cleanup_open_claims", "Claims neither finished nor reset.", |f| {
        Some(f.open_claims as f64)
    }),
    now("cleanup_stuck_claims", "Open claims silent for longer than stuck_after.", |f| {
        Some(f.stuck_claims as f64)
    }),
    now("cleanup_busy_workers", "Workers with open claims.", |f| Some(f.busy_workers as f64)),
    now("cleanup_backing_off_pastes", "Pastes that failed and wait for their next attempt.", |f| {
        Some(f.backing_off as f64)
    }),
    now("cleanup_dead_letter_pastes", "Pastes that failed for good and wait for a person.", |f| {
        Some(f.dead_letters as f64)
    }),
    now("cleanup_paused", "1 while the fleet is paused.", |f| {
        Some(f64::from(u8::from(f.paused.is_some())))
    }),
    now("cleanup_last_run_start_timestamp_seconds", "When the last run began.", |f| f.last_start_s),
    now(
        "cleanup_last_success_timestamp_seconds",
        "When a run last found nothing due any more.",
        |f| f.last_success_s,
    ),
    now("cleanup_last_audit_timestamp_seconds", "When the last whole audit ended.", |f| {
        f.audited_s
    }),
    now(
        "cleanup_last_audit_findings",
        "What the last whole audit found and left as it was.",
        |f| f.audit_findings_left.map(|findings| findings as f64),
    ),
    now("cleanup_figures_timestamp_seconds", "When these figures were taken.", |f| Some(f.now_s)),
];

const fn now(
    metric: &'static str,
    help: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
) -> Gauge {
    Gauge { metric, help, value }
}

/// Upper bounds of a tick's duration, in seconds.
const TICK_BOUNDS_S: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

/// What this watchdog process did itself.
#[derive(Debug, Default, Clone)]
struct Own {
    ticks: [u64; TICK_BOUNDS_S.len() + 1],
    ticks_s: f64,
    failed: u64,
    last_tick_s: Option<f64>,
    claims_pruned: u64,
    tombstones_purged: u64,
}

/// What `/metrics` shows.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Seen>);

#[derive(Debug, Default, Clone)]
struct Seen {
    totals: Totals,
    figures: Option<Snapshot>,
    own: Own,
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records a tick.
    pub(crate) fn ticked(&self, elapsed: Duration, pruned: &Pruned) {
        let took = elapsed.as_secs_f64();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.change(|seen| {
            seen.own.ticks[TICK_BOUNDS_S.partition_point(|bound| *bound < took)] += 1;
            seen.own.ticks_s += took;
            seen.own.last_tick_s = Some(now.unwrap_or_default().as_secs_f64());
            seen.own.claims_pruned += pruned.claims;
            seen.own.tombstones_purged += pruned.tombstones;
        });
    }

    /// Records a tick that did not succeed.
    pub(crate) fn tick_failed(&self) {
        self.change(|seen| seen.own.failed += 1);
    }

    /// From now on, a scrape shows these.
    pub(crate) fn show(&self, totals: Totals, figures: Snapshot) {
        self.change(|seen| (seen.totals, seen.figures) = (totals, Some(figures)));
    }

    /// The page, in Prometheus' text format.
    pub fn render(&self) -> String {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        render::page(&seen)
    }
}
