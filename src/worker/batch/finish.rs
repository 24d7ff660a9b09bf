//! Step 6: the paste rows go, and the claim is closed with what it did.

mod row_by_row;

use deadpool_postgres::Transaction;
use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::{
    PhaseTimes, Worker,
    delete_objects::ObjectsGone,
    fail_rows::Bad,
    retry::{ClaimState, LastTry, Mode, TryError},
};
use crate::{
    claim::{Claim, StepError},
    failpoint,
    postgres::planner::{BY_KEY, ROW_BY_ROW},
    worker::report::age_histogram,
};

const FENCE: &str = sql!("finish/fence");
const DELETE: &str = sql!("finish/delete_rows");
const BURY: &str = sql!("finish/write_tombstones");
const COUNT: &str = sql!("finish/count_rows");

/// What a finish did.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    pub rows: u64,
    /// Pastes that could not be deleted, with the reason.
    pub failed: Vec<(String, String)>,
    /// Pastes that something else has deleted meanwhile.
    pub gone: u64,
}

/// What became of the rows of a batch, before the claim is closed.
#[derive(Debug, Default)]
struct Removed {
    rows: u64,
    failed: Vec<(String, String)>,
    gone: u64,
    dead_letters: usize,
    /// Pastes that could not take over the key of their object, which is still there; and that key.
    kept: Vec<(String, String)>,
}

impl Worker {
    /// One transaction, fenced first. Done already: says what was done.
    pub async fn finish(
        &self,
        claim: &Claim,
        objects: &ObjectsGone,
        times: &PhaseTimes,
    ) -> Result<Finished, StepError> {
        let last = LastTry::new((named(&objects.bad), 0));
        let attempt = |mode| self.try_finish(claim, objects, times, mode, &last);
        let done_already = |state: &ClaimState| {
            let rows = state.finished?;
            let (failed, gone) = last.what();
            Some(Finished { rows, failed, gone })
        };
        self.retry_step(claim.fence, attempt, done_already).await
    }

    async fn try_finish(
        &self,
        claim: &Claim,
        objects: &ObjectsGone,
        times: &PhaseTimes,
        mode: Mode,
        last: &LastTry<(Vec<(String, String)>, u64)>,
    ) -> Result<Finished, TryError> {
        let started = Instant::now();
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let fence = transaction.prepare_cached(FENCE).await?;
        let deleted = i32::try_from(objects.deleted).unwrap_or(i32::MAX);
        let [claim_ms, decrement_ms, delete_ms, evict_ms, wait_ms, hold_ms] = times.before_finish();
        let done: [&(dyn ToSql + Sync); 9] = [
            &claim.fence.claim,
            &self.id,
            &deleted,
            &claim_ms,
            &decrement_ms,
            &delete_ms,
            &evict_ms,
            &wait_ms,
            &hold_ms,
        ];
        failpoint::reached("finish.before");
        // Sent together, in this order: one round trip.
        let ((), fenced) =
            try_join(transaction.batch_execute(BY_KEY), transaction.execute(&fence, &done)).await?;
        if fenced == 0 {
            return Err(TryError::NotFenced);
        }
        failpoint::reached("finish.fenced");
        let removed = match mode {
            Mode::Whole => self.remove_all(&transaction, claim, objects).await?,
            Mode::Careful => {
                transaction.batch_execute(ROW_BY_ROW).await?;
                self.remove_good(&mut transaction, claim, objects).await?
            }
        };
        failpoint::reached("finish.removed");
        count(&transaction, claim, &removed, started).await?;
        failpoint::reached("finish.counted");
        let Removed { rows, failed, gone, .. } = removed;
        self.tally.suspected(&failed);
        last.commits((failed.clone(), gone));
        transaction.commit().await?;
        failpoint::reached("finish.committed");
        Ok(Finished { rows, failed, gone })
    }

    /// What deletes the rows, or leaves tombstones of them.
    fn removal(&self) -> &'static str {
        if self.settings.retention.tombstones.is_zero() { DELETE } else { BURY }
    }

    /// The hot path: one statement. Afterwards no row may carry the claim's id any more, so if the
    /// numbers do not add up, a careful try finds out why.
    async fn remove_all(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        objects: &ObjectsGone,
    ) -> Result<Removed, TryError> {
        let id = claim.fence.claim;
        let mut dead_letters = 0;
        if !objects.bad.is_empty() {
            let failed = self.fail_rows(transaction, id, &objects.bad, true).await?;
            failpoint::reached("finish.rows_failed");
            if failed.found.len() < objects.bad.len() {
                return Err(TryError::Unaccounted);
            }
            dead_letters = failed.dead_letters;
        }
        let remove = transaction.prepare_cached(self.removal()).await?;
        let rows = transaction.execute(&remove, &[&id, &None::<Vec<&str>>]).await?;
        let accounted = rows as usize + objects.bad.len() + objects.taken_out;
        if accounted != claim.pastes.len() {
            return Err(TryError::Unaccounted);
        }
        self.blame.finish.succeeded();
        Ok(Removed { rows, failed: named(&objects.bad), dead_letters, ..Removed::default() })
    }
}

/// Closes the claim with its figures.
async fn count(
    transaction: &Transaction<'_>,
    claim: &Claim,
    removed: &Removed,
    started: Instant,
) -> Result<(), tokio_postgres::Error> {
    let count = transaction.prepare_cached(COUNT).await?;
    let finish_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
    let rows_deleted = i32::try_from(removed.rows).unwrap_or(i32::MAX);
    let [bad, dead] = [removed.failed.len(), removed.dead_letters]
        .map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    let ages = age_histogram::at_deletion(claim, &removed.failed);
    let (owners, keys): (Vec<&str>, Vec<&str>) =
        removed.kept.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
    let told: [&(dyn ToSql + Sync); 8] =
        [&claim.fence.claim, &rows_deleted, &finish_ms, &bad, &dead, &ages, &owners, &keys];
    transaction.execute(&count, &told).await?;
    Ok(())
}

fn named(bad: &[Bad]) -> Vec<(String, String)> {
    bad.iter().map(|bad| (bad.short_code.clone(), bad.error.clone())).collect()
}
