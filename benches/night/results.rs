//! The results: every round of every variant, medians, and the ratios that matter.

use serde_json::{Value, json};

use crate::fleet::Drained;

pub(crate) const LIMIT: &str = "limit: plain SQL, no safety";
pub(crate) const ONE: &str = "one worker";
pub(crate) const THREE: &str = "fleet of three";
pub(crate) const ONE_SLOW: &str = "one worker, S3 150 ms";
pub(crate) const THREE_SLOW: &str = "fleet of three, S3 150 ms";
pub(crate) const SEAWEEDFS: &str = "one worker, SeaweedFS";
pub(crate) const SINGLES: &str = "one worker, no DeleteObjects";
pub(crate) const SINGLES_LIMIT: &str = "limit: bare single deletes";
pub(crate) const LITERAL: &str = "row by row, as first written";

/// All rounds of one variant.
#[derive(Default)]
pub(crate) struct Variant {
    pub name: &'static str,
    pub rates: Vec<f64>,
    /// What the workers reported in the last round.
    pub drained: Option<Drained>,
}

impl Variant {
    pub(crate) fn median(&self) -> f64 {
        median(&self.rates)
    }

    /// Returns the difference between the fastest and the slowest round, as a share of the median.
    pub(crate) fn spread(&self) -> f64 {
        let (least, most) = (self.rates.iter().copied(), self.rates.iter().copied());
        (most.fold(0.0, f64::max) - least.fold(f64::MAX, f64::min)) / self.median()
    }
}

/// All measurements of one run.
#[derive(Default)]
pub(crate) struct Results {
    pub rows: u64,
    pub settings: Vec<String>,
    pub variants: Vec<Variant>,
    pub idle_rss_mib: f64,
    pub round_trips_per_batch: f64,
}

impl Results {
    pub(crate) fn add(&mut self, name: &'static str, rate: f64, drained: Option<Drained>) {
        eprintln!("  {name}: {rate:.0} rows/s");
        let known = self.variants.iter().position(|variant| variant.name == name);
        let place = known.unwrap_or_else(|| {
            self.variants.push(Variant { name, ..Variant::default() });
            self.variants.len() - 1
        });
        let variant = &mut self.variants[place];
        variant.rates.push(rate);
        variant.drained = drained.or(variant.drained.take());
    }

    pub(crate) fn of(&self, name: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }

    /// Returns the best median of these variants.
    pub(crate) fn best_of(&self, names: &[&str]) -> f64 {
        let medians = names.iter().filter_map(|name| self.of(name)).map(Variant::median);
        medians.fold(0.0, f64::max)
    }

    pub(crate) fn ratios(&self) -> Value {
        let (best, slow) = (self.best_of(&[ONE, THREE]), self.best_of(&[ONE_SLOW, THREE_SLOW]));
        json!({
            "best_to_limit": best / self.best_of(&[LIMIT]),
            "slow_s3_to_instant": slow / best,
            "singles_to_limit": self.best_of(&[SINGLES]) / self.best_of(&[SINGLES_LIMIT]),
            "best_to_literal": best / self.best_of(&[LITERAL]),
        })
    }

    /// Returns the median time of a claim in each tenth of a drain by one worker.
    pub(crate) fn claim_ms_by_decile(&self) -> Vec<f64> {
        let drained = self.of(ONE).and_then(|variant| variant.drained.as_ref());
        drained.map(|drained| deciles(&drained.claim_ms)).unwrap_or_default()
    }

    pub(crate) fn peak_rss_mib(&self) -> f64 {
        let drained = self.variants.iter().filter_map(|variant| variant.drained.as_ref());
        drained.map(|drained| drained.peak_rss_mib).fold(0.0, f64::max)
    }
}

/// Returns the median of each tenth.
pub(crate) fn deciles(values: &[f64]) -> Vec<f64> {
    let tenth = values.len().div_ceil(10).max(1);
    values.chunks(tenth).map(median).collect()
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
