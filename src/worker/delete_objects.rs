//! Step 4: delete the objects that nobody references any more. Objects go before the rows: a crash
//! in between leaves a claim that the watchdog resets, never an object that no row remembers.
//!
//! No failover to a synchronous standby brings a deleted object's row back: every key comes from a
//! transaction of this worker that wrote and whose COMMIT was answered (the release, the locking
//! read of a release whose answer was lost, the claim of a row that owes the key), and a COMMIT is
//! answered when the standby has it and all before it (see `postgres/acknowledged.rs`).

use std::{collections::HashMap, time::Duration};

use super::{PgError, Worker, batch::SLACK, detach::Bad, release::other_spellings};
use crate::{
    claim::{Claim, Released, StepError},
    objects::Deleted,
    postgres::{answered, describe_pool},
};

/// What became of a batch's objects.
#[derive(Debug, Default)]
pub struct ObjectsGone {
    pub deleted: usize,
    /// Pastes that the release took out of the batch: they are not finish's any more.
    pub(super) taken_out: usize,
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
        let taken_out = released.detached.len();
        let spared = self.spared(claim).await?;
        let heirs: HashMap<&String, &String> = newly.chain(owed).collect();
        let keys = heirs.keys().filter(|key| !spared.contains_key(**key));
        let keys: Vec<String> = keys.map(ToString::to_string).collect();
        if heirs.is_empty() {
            return Ok(ObjectsGone { taken_out, ..ObjectsGone::default() });
        }
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
        let later = stuck.into_iter().chain(spared).filter_map(|key| to_bad(false, key));
        Ok(ObjectsGone { deleted, taken_out, bad: refused.chain(later).collect() })
    }

    /// Of the keys that rows owe from earlier attempts, those that other content may need by now, under
    /// another spelling; with the reason. (The release has looked after its own.)
    async fn spared(&self, claim: &Claim) -> Result<HashMap<String, String>, StepError> {
        let owed = claim.pastes.iter().filter_map(|paste| paste.doomed_key.as_deref());
        let owed: Vec<&str> = owed.collect();
        if owed.is_empty() {
            return Ok(HashMap::new());
        }
        let look = async {
            let mut client = self.pool.get().await?;
            let transaction = client.transaction().await?;
            let spared = other_spellings(&transaction, &owed).await?;
            transaction.commit().await?;
            Ok::<_, PgError>(spared)
        };
        answered(look).await.map_err(|error| StepError::Surroundings(describe_pool(&error)))
    }

    /// How long a single call and what follows from it may take before the batch counts as wedged.
    pub(super) fn delete_allowed(&self) -> Duration {
        self.settings.s3.deadline * 2 + SLACK
    }
}
