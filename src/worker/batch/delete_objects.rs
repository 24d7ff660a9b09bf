//! Step 4: delete the objects that nobody references any more. Objects go before the rows: a crash
//! in between leaves a claim that the watchdog resets, never an object that no row remembers.
//!
//! No failover to a synchronous standby brings a deleted object's row back: every key comes from a
//! transaction of this worker that wrote and whose COMMIT was answered (the decrement, the locking
//! read of a decrement whose answer was lost, the claim of a row that owes the key), and a COMMIT is
//! answered when the standby has it and all before it (see `postgres/acknowledged.rs`).

use std::{collections::HashMap, time::Duration};

use super::{PgError, SLACK, Worker, fail_rows::Bad};
use crate::{
    claim::{Claim, Decremented, StepError},
    objects::Deleted,
    postgres::{answered, describe_pool},
};

const OTHER_SPELLINGS: &str = sql!("content/other_spellings");
const KEYS_IN_USE: &str = sql!("content/keys_in_use");

/// What became of a batch's objects.
#[derive(Debug, Default)]
pub struct ObjectsGone {
    pub deleted: usize,
    /// Pastes that the decrement took out of the batch: they are not finish's any more.
    pub(in crate::worker) taken_out: usize,
    pub(in crate::worker) bad: Vec<Bad>,
}

impl Worker {
    /// Deletes what this decrement unreferenced and what the batch's rows owe from earlier attempts.
    pub async fn delete_objects(
        &self,
        claim: &Claim,
        decremented: &Decremented,
    ) -> Result<ObjectsGone, StepError> {
        let newly = decremented
            .unreferenced
            .iter()
            .map(|unreferenced| (&unreferenced.s3_key, &unreferenced.pending_owner));
        let owed = claim
            .pastes
            .iter()
            .filter_map(|paste| Some((paste.pending_s3_key.as_ref()?, &paste.short_code)));
        let taken_out = decremented.failed.len();
        let pending_owners: HashMap<&String, &String> = newly.chain(owed).collect();
        let owes = claim.pastes.iter().any(|paste| paste.pending_s3_key.is_some());
        let spared = match owes || decremented.keys_are_odd {
            true => self.spared(pending_owners.keys().map(|key| &***key).collect()).await?,
            false => HashMap::new(),
        };
        let keys = pending_owners.keys().filter(|key| !spared.contains_key(**key));
        let keys: Vec<String> = keys.map(ToString::to_string).collect();
        if pending_owners.is_empty() {
            return Ok(ObjectsGone { taken_out, ..ObjectsGone::default() });
        }
        let progress = || self.open.progress(claim.fence.claim, self.delete_allowed());
        let outcome = self.objects.delete(&keys, progress).await;
        let Deleted { refused, stuck } =
            outcome.map_err(|error| StepError::Transient(error.to_string()))?;
        let deleted = keys.len() - refused.len() - stuck.len();
        let to_bad = |own_fault: bool, (key, error): (String, String)| {
            let short_code = pending_owners.get(&key)?.to_string();
            Some(Bad { short_code, error, pending_key: Some(key), own_fault })
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
        let (used, rows) = looked.map_err(|error| StepError::Transient(describe_pool(&error)))?;
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
    pub(in crate::worker) fn delete_allowed(&self) -> Duration {
        self.settings.s3.deadline * 2 + SLACK
    }
}
