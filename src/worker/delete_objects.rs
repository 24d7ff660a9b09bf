//! Step 4: delete the objects that nobody references any more. Objects go before the rows: a crash
//! in between leaves a claim that the watchdog resets, never an object that no row remembers.
//!
//! No failover to a synchronous standby brings a deleted object's row back: every key comes from a
//! transaction of this worker that wrote and whose COMMIT was answered (the release, the locking
//! read of a release whose answer was lost, the claim of a row that owes the key), and a COMMIT is
//! answered when the standby has it and all before it (see `postgres/acknowledged.rs`).

use std::{collections::HashMap, time::Duration};

use super::{PgError, Worker, batch::SLACK, detach::Bad};
use crate::{
    claim::{Claim, Released, StepError},
    objects::Deleted,
    postgres::{answered, describe_pool},
};

const OTHER_SPELLINGS: &str = include_str!("../../sql/queries/other_spellings.sql");
const KEYS_IN_USE: &str = include_str!("../../sql/queries/keys_in_use.sql");

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
        let heirs: HashMap<&String, &String> = newly.chain(owed).collect();
        let owes = claim.pastes.iter().any(|paste| paste.doomed_key.is_some());
        let spared = match owes || released.keys_are_odd {
            true => self.spared(heirs.keys().map(|key| &***key).collect()).await?,
            false => HashMap::new(),
        };
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

    /// Of these keys, those that must not be deleted now, with the reason: content uses them, or other
    /// content has another spelling, and in a store that normalises keys both are one object. Their
    /// pastes wait, and owe them; so two expired spellings of one object never wait for each other.
    async fn spared(&self, keys: Vec<&str>) -> Result<HashMap<String, String>, StepError> {
        let look = async {
            let client = self.pool.get().await?;
            let used = client.query(KEYS_IN_USE, &[&keys]).await?;
            Ok::<_, PgError>((used, client.query(OTHER_SPELLINGS, &[&keys, &keys]).await?))
        };
        let looked = answered(look).await;
        let (used, rows) =
            looked.map_err(|error| StepError::Surroundings(describe_pool(&error)))?;
        let used = used.iter().map(|row| {
            let key: String = row.get("s3_key");
            let why = format!("its object {key:?} is not deleted: content uses it again");
            (key, why)
        });
        let spared = rows.iter().map(|row| {
            let (key, other): (String, String) = (row.get("s3_key"), row.get("other_key"));
            let why = format!(
                "its object {key:?} is not deleted: the store may take it for {other:?}, which \
                 other content uses"
            );
            (key, why)
        });
        Ok(used.chain(spared).collect())
    }

    /// How long a single call and what follows from it may take before the batch counts as wedged.
    pub(super) fn delete_allowed(&self) -> Duration {
        self.settings.s3.deadline * 2 + SLACK
    }
}
