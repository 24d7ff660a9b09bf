//! Every metric of the fleet, declared once with its help text.
//!
//! To add a counter, count it in a worker's run record or in `totals/count_claims.sql`, and declare it
//! in `COUNTERS`.

use super::{AGE_BOUNDS_S, DURATION_BOUNDS_MS};
use crate::{fleet::snapshot::Snapshot, objects::ERROR_CLASSES};

/// A counter: a total that only grows.
pub(super) struct Counter {
    pub(super) metric: &'static str,
    pub(super) help: &'static str,
    /// Its name in `cleanup_totals`.
    pub(super) total: &'static str,
    pub(super) label: Option<(&'static str, &'static [&'static str])>,
}

pub(super) const COUNTERS: [Counter; 15] = [
    plain("cleanup_pastes_deleted_total", "pastes_deleted", "Pastes erased."),
    plain("cleanup_objects_deleted_total", "objects_deleted", "Objects deleted from S3."),
    plain(
        "cleanup_freed_bytes_total",
        "freed_bytes",
        "Size of the content that became unreferenced.",
    ),
    plain("cleanup_batches_total", "batches", "Batches finished."),
    plain("cleanup_pastes_reset_total", "pastes_reset", "Pastes in claims that were reset."),
    plain(
        "cleanup_leases_lost_total",
        "leases_lost",
        "Leases that live workers lost: reset, or without a heartbeat for too long.",
    ),
    plain(
        "cleanup_claims_without_lock_total",
        "claims_without_lock",
        "Claims tried without the Redis lock.",
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
                "lock",
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
            &[
                "drained",
                "limit",
                "deadline",
                "signal",
                "paused",
                "dead_worker",
                "stranded",
                "brake",
                "failed",
            ],
        )),
    },
];

const fn plain(metric: &'static str, total: &'static str, help: &'static str) -> Counter {
    Counter { metric, help, total, label: None }
}

/// A histogram: totals by upper bound.
pub(super) struct Histogram {
    pub(super) metric: &'static str,
    pub(super) help: &'static str,
    pub(super) label: Option<&'static str>,
    /// Label values and their names in `cleanup_totals`.
    pub(super) totals: &'static [(&'static str, &'static str)],
    pub(super) bounds: &'static [f64],
    /// How many units of `bounds` are a second.
    pub(super) units_per_second: f64,
}

pub(super) const HISTOGRAMS: [Histogram; 4] = [
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
pub(super) struct Gauge {
    pub(super) metric: &'static str,
    pub(super) help: &'static str,
    pub(super) value: fn(&Snapshot) -> Option<f64>,
}

pub(super) const GAUGES: [Gauge; 15] = [
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
        "cleanup_snapshot_timestamp_seconds",
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
