//! What `/metrics` shows: the totals and the snapshot of the fleet, and what the watchdog process itself
//! has done. Nothing here queries the database: the watchdog takes a snapshot once a tick, and a scrape
//! shows that snapshot. The metrics are declared in `families.rs`.

mod families;
mod render;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{fleet::snapshot::Snapshot, mutex::Mutex};

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
        change(&mut self.0.lock());
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
        let state = self.0.lock().clone();
        render::page(&state)
    }
}
