//! Every metric, declared once with its help.

use std::time::Duration;

use anyhow::{Context, Result};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::watchdog::{Swept, prune::Pruned};

const TICK_SECONDS: &str = "cleanup_watchdog_tick_duration_seconds";
const CLAIMS_RESET: &str = "cleanup_watchdog_claims_reset_total";
const PASTES_RESET: &str = "cleanup_watchdog_pastes_reset_total";
const DEAD_LETTERS: &str = "cleanup_watchdog_dead_letters_total";
const CLAIMS_PRUNED: &str = "cleanup_watchdog_claims_pruned_total";
const TOMBSTONES_PURGED: &str = "cleanup_watchdog_tombstones_purged_total";
const LAST_TICK: &str = "cleanup_watchdog_last_tick_timestamp_seconds";

/// Starts collecting; the handle renders `/metrics`.
pub fn install() -> Result<PrometheusHandle> {
    let handle =
        PrometheusBuilder::new().install_recorder().context("cannot start the metrics recorder")?;
    describe_histogram!(TICK_SECONDS, "How long a tick took.");
    describe_counter!(CLAIMS_RESET, "Claims reset because their worker was silent.");
    describe_counter!(PASTES_RESET, "Pastes that became due again by a reset.");
    describe_counter!(DEAD_LETTERS, "Pastes dead-lettered by a reset.");
    describe_counter!(CLAIMS_PRUNED, "Ended claims removed from the history.");
    describe_counter!(TOMBSTONES_PURGED, "Tombstones removed past their retention.");
    describe_gauge!(LAST_TICK, "When the last successful tick ended.");
    for name in [CLAIMS_RESET, PASTES_RESET, DEAD_LETTERS, CLAIMS_PRUNED, TOMBSTONES_PURGED] {
        counter!(name).increment(0);
    }
    Ok(handle)
}

/// Records a tick.
pub fn ticked(elapsed: Duration, swept: &Swept, pruned: &Pruned) {
    histogram!(TICK_SECONDS).record(elapsed);
    counter!(CLAIMS_RESET).increment(swept.reset.claims as u64);
    counter!(PASTES_RESET).increment(swept.reset.rows as u64 + swept.orphans);
    counter!(DEAD_LETTERS).increment(swept.reset.dead_letters as u64);
    counter!(CLAIMS_PRUNED).increment(pruned.claims);
    counter!(TOMBSTONES_PURGED).increment(pruned.tombstones);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    gauge!(LAST_TICK).set(now.unwrap_or_default().as_secs_f64());
}
