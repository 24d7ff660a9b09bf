//! Renders the metrics in Prometheus' text format.

use std::fmt::Write as _;

use super::{
    Own, State, TICK_BOUNDS_S, Totals,
    families::{COUNTERS, GAUGES, HISTOGRAMS},
};

/// Renders all families, each with HELP and TYPE. Before the first snapshot only those of the watchdog
/// itself: a counter that started with a wrong zero would look like a counter reset.
pub(super) fn page(state: &State) -> String {
    let mut page = Page(String::new());
    page.family("cleanup_build_info", "gauge", "Version of this watchdog; always 1.");
    page.sample("cleanup_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    page.own(&state.own);
    if let Some(snapshot) = &state.snapshot {
        for gauge in &GAUGES {
            if let Some(value) = (gauge.value)(snapshot) {
                page.family(gauge.metric, "gauge", gauge.help);
                page.sample(gauge.metric, &[], value);
            }
        }
        page.totals(&state.totals);
    }
    page.0
}

struct Page(String);

impl Page {
    fn family(&mut self, metric: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
    }

    fn sample(&mut self, metric: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "{metric} {value}"),
            false => writeln!(self.0, "{metric}{{{}}} {value}", labels.join(",")),
        };
    }

    fn totals(&mut self, totals: &Totals) {
        let total = |name: &str, label: &str| {
            totals.get(&(name.to_string(), label.to_string())).copied().unwrap_or_default()
        };
        for counter in &COUNTERS {
            self.family(counter.metric, "counter", counter.help);
            match counter.label {
                None => self.sample(counter.metric, &[], total(counter.total, "")),
                Some((label, values)) => {
                    for value in values {
                        let so_far = total(counter.total, value);
                        self.sample(counter.metric, &[(label, value)], so_far);
                    }
                }
            }
        }
        for histogram in &HISTOGRAMS {
            self.family(histogram.metric, "histogram", histogram.help);
            for (value, name) in histogram.totals {
                let label: Vec<_> = histogram.label.iter().map(|label| (*label, *value)).collect();
                let bounds: Vec<f64> =
                    histogram.bounds.iter().map(|b| b / histogram.units_per_second).collect();
                let counts = bounds.iter().map(|bound| total(name, &bound.to_string()));
                let counts: Vec<f64> = counts.chain([total(name, "+Inf")]).collect();
                self.histogram(histogram.metric, &label, &bounds, &counts, total(name, "sum"));
            }
        }
    }

    fn histogram(
        &mut self,
        metric: &str,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: &[f64],
        sum: f64,
    ) {
        let names = bounds.iter().map(ToString::to_string).chain(["+Inf".to_string()]);
        let mut so_far = 0.0;
        for (bound, count) in names.zip(counts) {
            so_far += count;
            let labels: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample(&format!("{metric}_bucket"), &labels, so_far);
        }
        self.sample(&format!("{metric}_sum"), labels, sum);
        self.sample(&format!("{metric}_count"), labels, so_far);
    }

    fn own(&mut self, own: &Own) {
        let metric = "cleanup_watchdog_tick_duration_seconds";
        self.family(metric, "histogram", "Duration of the ticks of this watchdog.");
        let counts = own.ticks.map(|count| count as f64);
        self.histogram(metric, &[], &TICK_BOUNDS_S, &counts, own.ticks_s);
        for (metric, help, count) in [
            (
                "cleanup_watchdog_tick_failures_total",
                "Ticks of this watchdog that failed.",
                own.failed,
            ),
            (
                "cleanup_watchdog_claims_pruned_total",
                "Ended claims that this watchdog pruned after retention.history.",
                own.claims_pruned,
            ),
            (
                "cleanup_watchdog_tombstones_purged_total",
                "Tombstones that this watchdog purged after retention.tombstones.",
                own.tombstones_purged,
            ),
        ] {
            self.family(metric, "counter", help);
            self.sample(metric, &[], count as f64);
        }
        if let Some(last) = own.last_tick_s {
            let metric = "cleanup_watchdog_last_tick_timestamp_seconds";
            self.family(metric, "gauge", "End of the last successful tick of this watchdog.");
            self.sample(metric, &[], last);
        }
    }
}
