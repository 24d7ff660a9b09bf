//! The safety brake for missing content. A few missing content rows are drift; many of them mean that
//! the content is kept elsewhere, and that deleting the pastes would leave their objects behind.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Plan, References, Tally, TryError};
use crate::{claim::Claim, format::thousands, mutex::Mutex};

/// A paste without a content row is deleted without its object. A few of them are drift.
const MISSING_AT_LEAST: u64 = 100;
const MISSING_SHARE: f64 = 0.01;

/// Returns why the run must stop when `missing` of its pastes have no content row.
pub(in crate::worker) fn judge_missing(missing: u64, pastes: u64) -> Option<String> {
    let much = missing > MISSING_AT_LEAST && missing as f64 > MISSING_SHARE * pastes as f64;
    much.then(|| {
        format!(
            "{} of {} pastes have no content row, so their objects would stay behind; check that \
             content is the right table and complete (`cleanupctl audit` lists the pastes); if \
             this is expected, run again with --override-brake",
            thousands(missing),
            thousands(pastes)
        )
    })
}

/// The pastes of this run's batches, and how many of them have no content row.
#[derive(Debug)]
pub(in crate::worker) struct MissingContent {
    /// Pastes and missing content rows, by claim.
    batches: Mutex<HashMap<i64, (u64, u64)>>,
    tally: Arc<Tally>,
    is_ignored: AtomicBool,
}

impl MissingContent {
    pub(crate) fn new(tally: Arc<Tally>) -> Self {
        Self { batches: Mutex::default(), tally, is_ignored: AtomicBool::new(false) }
    }

    /// Turns this brake off for the run, or on.
    pub(crate) fn ignore(&self, is_ignored: bool) {
        self.is_ignored.store(is_ignored, Ordering::Release);
    }

    /// Replaces the numbers of this claim (a batch that is tried again counts once) and returns the
    /// sums over all batches of the run.
    fn add(&self, claim: i64, pastes: u64, missing: u64) -> (u64, u64) {
        let mut batches = self.batches.lock();
        batches.insert(claim, (pastes, missing));
        let sum = |all: (u64, u64), one: &(u64, u64)| (all.0 + one.0, all.1 + one.1);
        batches.values().fold((0, 0), sum)
    }

    /// Stops the run before the commit when too much is missing.
    pub(crate) fn check(
        &self,
        claim: &Claim,
        plan: &Plan,
        references: &References<'_>,
        locked: &[Vec<u8>],
    ) -> Result<(), TryError> {
        let found: HashSet<&[u8]> = plan
            .contents
            .iter()
            .map(|content| &*content.hash)
            .chain(locked.iter().map(|hash| &**hash))
            .collect();
        let missing = references.iter().filter(|(hash, _)| !found.contains(*hash));
        let missing = missing.map(|(_, pastes)| pastes.len() as u64).sum();
        let (pastes, missing) = self.add(claim.fence.claim, claim.pastes.len() as u64, missing);
        let done = self.tally.rows().max(pastes);
        match judge_missing(missing, done) {
            Some(reason) if !self.is_ignored.load(Ordering::Acquire) => {
                Err(TryError::Brake(reason))
            }
            _ => Ok(()),
        }
    }
}
