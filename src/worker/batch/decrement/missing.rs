//! The brake for content that is not there. A few missing content rows are drift; many of them mean
//! that the content is kept elsewhere, and that deleting the pastes would leave their objects behind.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

use super::{Plan, References, TryError, Worker};
use crate::{claim::Claim, worker::run::brake::judge_missing};

/// The pastes of this run's batches, and how many of them have no content row.
#[derive(Debug, Default)]
pub(in crate::worker) struct MissingContent(Mutex<HashMap<i64, (u64, u64)>>);

impl MissingContent {
    /// Over all batches, this one included, however often it is tried.
    fn add(&self, claim: i64, pastes: u64, missing: u64) -> (u64, u64) {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        batches.insert(claim, (pastes, missing));
        let sum = |all: (u64, u64), one: &(u64, u64)| (all.0 + one.0, all.1 + one.1);
        batches.values().fold((0, 0), sum)
    }
}

impl Worker {
    /// Stops the run before the commit when too much is missing.
    pub(in crate::worker) fn judge_missing(
        &self,
        claim: &Claim,
        plan: &Plan,
        references: &References<'_>,
        locked: &[Vec<u8>],
    ) -> Result<(), TryError> {
        let there: HashSet<&[u8]> = plan
            .bodies
            .iter()
            .map(|body| &*body.hash)
            .chain(locked.iter().map(|hash| &**hash))
            .collect();
        let missing = references.iter().filter(|(hash, _)| !there.contains(*hash));
        let missing = missing.map(|(_, pastes)| pastes.len() as u64).sum();
        let (pastes, missing) =
            self.missing.add(claim.fence.claim, claim.pastes.len() as u64, missing);
        let done = self.tally.rows().max(pastes);
        match judge_missing(missing, done) {
            Some(reason) if !self.brake_is_overridden() => Err(TryError::Brake(reason)),
            _ => Ok(()),
        }
    }
}
