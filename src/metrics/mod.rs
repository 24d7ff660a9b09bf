//! Declares every metric once, with its help text. Nothing here queries the database: the watchdog takes
//! a snapshot once a tick, and a scrape shows that snapshot.
//!
//! To add a counter, count it in a worker's run record or in `watchdog/count_claims.sql`, and declare it
//! in `COUNTERS`.

mod render;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{fleet::snapshot::Snapshot, objects::ERROR_CLASSES};

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

/// The fleet's totals by name and label, the rows of `cleanup_totals`.
pub type Totals = BTreeMap<(String, String), f64>;

/// A counter: a total that only grows.
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
    plain("cleanup_freed_bytes_total", "freed_bytes", "Size of the objects deleted from S3."),
    plain("cleanup_batches_total", "batches", "Batches finished."),
    plain("cleanup_pastes_reset_total", "pastes_reset", "Pastes in claims that were reset."),
    plain("cleanup_claims_lost_total", "claims_lost", "Claims of live workers that were reset."),
    plain(
        "cleanup_claims_without_lock_total",
        "claims_without_lock",
        "Claims made without the Redis lock.",
    ),
    plain(
        "cleanup_paste_failures_total",
        "paste_failures",
        "Failures of single pastes, which then back off.",
    ),
    plain("cleanup_pastes_dead_lettered_total", "dead_letters", "Pastes that became dead letters."),
    plain("cleanup_count_drift_total", "drift", "Wrong ref_counts repaired by decrements."),
    plain(
        "cleanup_cache_eviction_failures_total",
        "evictions_failed",
        "Batches whose cache entries could not be evicted.",
    ),
    Counter {
        metric: "cleanup_claims_reset_total",
        help: "Claims reset, because their lease expired or their worker released them.",
        total: "claims_reset",
        label: Some(("reason", &["lease_expired", "released"])),
    },
    Counter {
        metric: "cleanup_s3_errors_total",
        help: "S3 calls that failed, entirely or for some keys, by class.",
        total: "s3_errors",
        label: Some(("class", &ERROR_CLASSES)),
    },
    Counter {
        metric: "cleanup_throttled_seconds_total",
        help: "Time in which runs waited instead of claiming or deleting, by reason.",
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
        help: "Ended runs by the reason they stopped.",
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

/// A histogram: totals by upper bound.
struct Histogram {
    metric: &'static str,
    help: &'static str,
    label: Option<&'static str>,
    /// Label values and their names in `cleanup_totals`.
    totals: &'static [(&'static str, &'static str)],
    bounds: &'static [f64],
    /// How many units of `bounds` are a second.
    units_per_second: f64,
}

const HISTOGRAMS: [Histogram; 4] = [
    Histogram {
        metric: "cleanup_paste_age_at_deletion_seconds",
        help: "Time from a paste's expiry to its deletion.",
        label: None,
        totals: &[("", "age")],
        bounds: &AGE_BOUNDS_S,
        units_per_second: 1.0,
    },
    Histogram {
        metric: "cleanup_batch_phase_duration_seconds",
        help: "Duration of the steps of a batch.",
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
        help: "Time a claim waited for the Redis lock.",
        label: None,
        totals: &[("", "lock_wait")],
        bounds: &DURATION_BOUNDS_MS,
        units_per_second: 1000.0,
    },
    Histogram {
        metric: "cleanup_lock_hold_seconds",
        help: "Time a claim held the Redis lock.",
        label: None,
        totals: &[("", "lock_hold")],
        bounds: &DURATION_BOUNDS_MS,
        units_per_second: 1000.0,
    },
];

/// A gauge: a value of the latest snapshot.
struct Gauge {
    metric: &'static str,
    help: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
}

const GAUGES: [Gauge; 15] = [
    gauge(
        "cleanup_backlog_pastes",
        "Pastes that are due; exact up to 100,000, estimated beyond.",
        |fleet| Some(fleet.backlog as f64),
    ),
    gauge("cleanup_backlog_estimated", "1 while cleanup_backlog_pastes is an estimate.", |fleet| {
        Some(f64::from(fleet.backlog_estimated))
    }),
    gauge(
        "cleanup_oldest_overdue_seconds",
        "Age of the oldest due paste since its expiry.",
        |fleet| Some(fleet.oldest_overdue_s.unwrap_or(0.0)),
    ),
    gauge("cleanup_in_progress_pastes", "Pastes in open claims.", |fleet| {
        Some(fleet.in_progress as f64)
    }),
    gauge("cleanup_open_claims", "Claims neither finished nor reset.", |fleet| {
        Some(fleet.open_claims as f64)
    }),
    gauge(
        "cleanup_stuck_claims",
        "Open claims without a heartbeat for longer than stuck_after.",
        |fleet| Some(fleet.stuck_claims as f64),
    ),
    gauge("cleanup_busy_workers", "Workers with open claims.", |fleet| {
        Some(fleet.busy_workers as f64)
    }),
    gauge("cleanup_backing_off_pastes", "Pastes that failed and will be retried.", |fleet| {
        Some(fleet.backing_off as f64)
    }),
    gauge(
        "cleanup_dead_letter_pastes",
        "Pastes that failed permanently and need an operator.",
        |fleet| Some(fleet.dead_letters as f64),
    ),
    gauge("cleanup_paused", "1 while the fleet is paused.", |fleet| {
        Some(f64::from(u8::from(fleet.paused.is_some())))
    }),
    gauge("cleanup_last_run_start_timestamp_seconds", "Start of the last run.", |fleet| {
        fleet.last_start_s
    }),
    gauge(
        "cleanup_last_success_timestamp_seconds",
        "End of the last run that left nothing due.",
        |fleet| fleet.last_success_s,
    ),
    gauge("cleanup_last_audit_timestamp_seconds", "End of the last complete audit.", |fleet| {
        fleet.audited_s
    }),
    gauge(
        "cleanup_last_audit_findings",
        "Findings that the last complete audit did not repair.",
        |fleet| fleet.audit_findings_left.map(|findings| findings as f64),
    ),
    gauge(
        "cleanup_figures_timestamp_seconds",
        "When this snapshot of the fleet was taken.",
        |fleet| Some(fleet.now_s),
    ),
];

const fn gauge(
    metric: &'static str,
    help: &'static str,
    value: fn(&Snapshot) -> Option<f64>,
) -> Gauge {
    Gauge { metric, help, value }
}

/// Upper bounds of a tick's duration, in seconds.
const TICK_BOUNDS_S: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

/// What this watchdog process itself has done.
#[derive(Debug, Default, Clone)]
struct Own {
    ticks: [u64; TICK_BOUNDS_S.len() + 1],
    ticks_s: f64,
    failed: u64,
    last_tick_s: Option<f64>,
    claims_pruned: u64,
    tombstones_purged: u64,
}

/// A tick of the watchdog that succeeded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tick {
    pub elapsed: Duration,
    pub claims_pruned: u64,
    pub tombstones_purged: u64,
}

/// What `/metrics` shows.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<State>);

#[derive(Debug, Default, Clone)]
struct State {
    totals: Totals,
    /// `None` until the first snapshot.
    snapshot: Option<Snapshot>,
    own: Own,
}

impl Metrics {
    /// Creates the metrics of a process, which shares them between its tick loop and its HTTP server.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records a tick that succeeded.
    pub(crate) fn tick_succeeded(&self, tick: Tick) {
        let took = tick.elapsed.as_secs_f64();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.change(|State { own, .. }| {
            own.ticks[TICK_BOUNDS_S.partition_point(|bound| *bound < took)] += 1;
            own.ticks_s += took;
            own.last_tick_s = Some(now.unwrap_or_default().as_secs_f64());
            own.claims_pruned += tick.claims_pruned;
            own.tombstones_purged += tick.tombstones_purged;
        });
    }

    /// Records a tick that failed.
    pub(crate) fn tick_failed(&self) {
        self.change(|state| state.own.failed += 1);
    }

    /// Replaces what scrapes show of the fleet.
    pub(crate) fn show(&self, totals: Totals, snapshot: Snapshot) {
        self.change(|state| (state.totals, state.snapshot) = (totals, Some(snapshot)));
    }

    /// Returns the page, in Prometheus' text format.
    pub fn render(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        render::page(&state)
    }
}
