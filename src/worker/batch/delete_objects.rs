//! Step 4: delete the objects that no paste references any more.
//!
//! In: the claim and what its decrement unreferenced. Out: how many objects were deleted, and the pastes
//! whose object could not be deleted. Objects are deleted before the rows: a crash in between leaves a
//! claim that the watchdog resets, never an object that no row knows.
//!
//! A failover to a synchronous standby cannot restore the row of a deleted object. Every key comes from a
//! transaction of this worker that wrote and whose COMMIT was acknowledged: the decrement, the locking
//! read of a decrement whose answer was lost, or the claim of a row with a pending object delete. A COMMIT
//! is acknowledged when the standby has it and everything before it (see `postgres/acknowledged.rs`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use deadpool_postgres::Pool;

use super::{OpenClaims, SLACK, fail_rows::BadRow};
use crate::{
    claim::{Claim, Decremented, StepError},
    objects::{Deleted, Objects},
    postgres::{PgError, answered},
};

const OTHER_SPELLINGS: &str = sql!("content/other_spellings");
const KEYS_IN_USE: &str = sql!("content/keys_in_use");

/// What became of a batch's objects.
#[derive(Debug, Default)]
pub struct ObjectsDeleted {
    /// Objects that are gone now. One that was missing before counts, too.
    pub deleted: usize,
    /// Pastes that the decrement took out of the batch: the finish does not find them.
    pub(in crate::worker) taken_out: usize,
    /// Pastes whose object could not be deleted.
    pub(in crate::worker) bad: Vec<BadRow>,
}

/// Deletes objects.
pub(in crate::worker) struct DeleteObjectsStep {
    pool: Pool,
    objects: Objects,
    deadline: Duration,
    open: Arc<OpenClaims>,
}

impl DeleteObjectsStep {
    pub(crate) fn new(
        pool: Pool,
        objects: Objects,
        deadline: Duration,
        open: Arc<OpenClaims>,
    ) -> Self {
        Self { pool, objects, deadline, open }
    }

    /// Deletes what the decrement unreferenced, and the pending deletes of earlier attempts.
    pub(crate) async fn run(
        &self,
        claim: &Claim,
        decremented: &Decremented,
    ) -> Result<ObjectsDeleted, StepError> {
        let newly = decremented.unreferenced.iter().map(|new| (&new.s3_key, &new.pending_owner));
        let earlier = claim
            .pastes
            .iter()
            .filter_map(|paste| Some((paste.pending_s3_key.as_ref()?, &paste.short_code)));
        let taken_out = decremented.failed.len();
        let owners: HashMap<&String, &String> = newly.chain(earlier).collect();
        let has_earlier = claim.pastes.iter().any(|paste| paste.pending_s3_key.is_some());
        let spared = match has_earlier || decremented.keys_are_odd {
            true => self.spared(owners.keys().map(|key| &***key).collect()).await?,
            false => HashMap::new(),
        };
        let keys = owners.keys().filter(|key| !spared.contains_key(**key));
        let keys: Vec<String> = keys.map(ToString::to_string).collect();
        if owners.is_empty() {
            return Ok(ObjectsDeleted { taken_out, ..ObjectsDeleted::default() });
        }
        let progress = || self.open.progress(claim.fence.claim, self.longest());
        let outcome = self.objects.delete(&keys, progress).await;
        let Deleted { refused, stuck } =
            outcome.map_err(|error| StepError::Transient(error.to_string()))?;
        let deleted = keys.len() - refused.len() - stuck.len();
        let to_bad = |is_row_error: bool, (key, error): (String, String)| {
            let short_code = (*owners.get(&key)?).clone();
            Some(BadRow { short_code, error, pending_key: Some(key), is_row_error })
        };
        let refused = refused.into_iter().filter_map(|key| to_bad(true, key));
        let later = stuck.into_iter().chain(spared).filter_map(|key| to_bad(false, key));
        Ok(ObjectsDeleted { deleted, taken_out, bad: refused.chain(later).collect() })
    }

    /// Returns those of the keys that must not be deleted now, with the reason: content uses them, or other
    /// content has another spelling, and in a store that normalises keys both are one object. Their pastes
    /// back off and keep the pending delete, so two expired spellings of one object never wait for each
    /// other.
    async fn spared(&self, keys: Vec<&str>) -> Result<HashMap<String, String>, StepError> {
        let queries = async {
            let client = self.pool.get().await?;
            let used = client.query(KEYS_IN_USE, &[&keys]).await?;
            Ok::<_, PgError>((used, client.query(OTHER_SPELLINGS, &[&keys, &keys]).await?))
        };
        let found = answered(queries).await;
        let (used, rows) = found.map_err(|error| StepError::Transient(error.to_string()))?;
        let used = used.iter().map(|row| {
            let key: String = row.get("s3_key");
            let why = format!("object {key:?} is kept: a content row uses this key again");
            (key, why)
        });
        let spared = rows.iter().map(|row| {
            let (key, other): (String, String) = (row.get("s3_key"), row.get("other_key"));
            let why = format!(
                "object {key:?} is kept while other content uses {other:?}: some stores treat both \
                 as one object"
            );
            (key, why)
        });
        Ok(used.chain(spared).collect())
    }

    /// Returns how long a single call and its retries may take before the batch counts as stuck.
    pub(crate) fn longest(&self) -> Duration {
        self.deadline * 2 + SLACK
    }
}
