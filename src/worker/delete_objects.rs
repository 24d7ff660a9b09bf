//! Step 4: delete the objects that nobody references any more. Objects go before the rows: a crash
//! in between leaves a claim that the watchdog resets, never an object that no row remembers.
//!
//! No failover to a synchronous standby brings a deleted object's row back: every key comes from a
//! transaction of this worker that wrote and whose COMMIT was answered (the release, the locking
//! read of a release whose answer was lost, the claim of a row that owes the key), and a COMMIT is
//! answered when the standby has it and all before it (see `postgres/acknowledged.rs`).

use std::{collections::HashMap, time::Duration};

use super::{Worker, batch::SLACK, detach::Bad};
use crate::{
    claim::{Claim, Released, StepError},
    objects::Deleted,
};

/// What became of a batch's objects.
#[derive(Debug, Default)]
pub struct ObjectsGone {
    pub deleted: usize,
    pub(super) bad: Vec<Bad>,
}

impl Worker {
    /// Deletes what this release doomed and what the batch's rows owe from earlier attempts.
    pub async fn delete_objects(
        &self,
        claim: &Claim,
        released: &Released,
    ) -> Result<ObjectsGone, StepError> {
        let newly = released.doomed.iter().map(|doomed| (&doomed.s3_key, &doomed.heir));
        let owed = claim
            .pastes
            .iter()
            .filter_map(|paste| Some((paste.doomed_key.as_ref()?, &paste.short_code)));
        let heirs: HashMap<&String, &String> = newly.chain(owed).collect();
        if heirs.is_empty() {
            return Ok(ObjectsGone::default());
        }
        let keys: Vec<String> = heirs.keys().map(ToString::to_string).collect();
        let progress = || self.open.progress(claim.fence.claim, self.delete_allowed());
        let outcome = self.objects.delete(&keys, progress).await;
        let Deleted { refused, stuck } =
            outcome.map_err(|error| StepError::Surroundings(error.to_string()))?;
        let deleted = keys.len() - refused.len() - stuck.len();
        let to_bad = |own_fault: bool, (key, error): (String, String)| {
            let short_code = heirs.get(&key)?.to_string();
            Some(Bad { short_code, error, owed_key: Some(key), own_fault })
        };
        let refused = refused.into_iter().filter_map(|key| to_bad(true, key));
        let stuck = stuck.into_iter().filter_map(|key| to_bad(false, key));
        Ok(ObjectsGone { deleted, bad: refused.chain(stuck).collect() })
    }

    /// How long a single call and what follows from it may take before the batch counts as wedged.
    pub(super) fn delete_allowed(&self) -> Duration {
        self.settings.s3.deadline * 2 + SLACK
    }
}
