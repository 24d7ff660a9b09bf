//! Step 6: delete the paste rows and close the claim with its numbers.
//!
//! In: the claim, and the pastes whose object could not be deleted. Out: what was deleted and what
//! failed. One transaction: a crash before its commit leaves a claim that the watchdog resets; its rows
//! are claimed again, without a reference. After it nothing is left to do.

mod row_by_row;

use std::sync::Arc;

use deadpool_postgres::{Pool, Transaction};
use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::{
    PhaseTimes, Tally,
    delete_objects::ObjectsDeleted,
    fail_rows::{BadRow, FailRows},
    retry::{ClaimState, LastTry, Mode, Retry, TryError},
};
use crate::{
    claim::{Claim, StepError},
    failpoint,
    postgres::{
        bisect::Blame,
        planner::{BY_KEY, ROW_BY_ROW},
    },
    worker::report::age_histogram,
};

const FENCE: &str = sql!("finish/fence");
const DELETE_ROWS: &str = sql!("finish/delete_rows");
const WRITE_TOMBSTONES: &str = sql!("finish/write_tombstones");
const COUNT: &str = sql!("finish/count_rows");

/// What a finish did.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    /// Pastes that were deleted, or turned into tombstones.
    pub rows: u64,
    /// Pastes that could not be deleted, with the reason.
    pub failed: Vec<(String, String)>,
    /// Pastes that another program deleted meanwhile.
    pub gone: u64,
}

/// What became of the rows of a batch, before the claim is closed.
#[derive(Debug, Default)]
struct Removed {
    rows: u64,
    failed: Vec<(String, String)>,
    gone: u64,
    dead_letters: usize,
    /// Pastes that could not take over the key of their object, which still exists; and that key.
    kept: Vec<(String, String)>,
}

/// Deletes paste rows and closes claims.
pub(in crate::worker) struct FinishStep {
    pool: Pool,
    retry: Retry,
    fail_rows: FailRows,
    tombstones: bool,
    tally: Arc<Tally>,
    blame: Blame,
}

impl FinishStep {
    pub(crate) fn new(
        pool: Pool,
        retry: Retry,
        fail_rows: FailRows,
        tombstones: bool,
        tally: Arc<Tally>,
    ) -> Self {
        Self { pool, retry, fail_rows, tombstones, tally, blame: Blame::default() }
    }

    /// Finishes in one transaction whose first write is the fence. If an earlier try was committed,
    /// returns its result.
    pub(crate) async fn run(
        &self,
        claim: &Claim,
        objects: &ObjectsDeleted,
        times: &PhaseTimes,
    ) -> Result<Finished, StepError> {
        let last = LastTry::new((named(&objects.bad), 0));
        let attempt = |mode| self.try_finish(claim, objects, times, mode, &last);
        let done_already = |state: &ClaimState| {
            let rows = state.finished?;
            let (failed, gone) = last.what();
            Some(Finished { rows, failed, gone })
        };
        self.retry.step("finish", claim.fence, attempt, done_already).await
    }

    async fn try_finish(
        &self,
        claim: &Claim,
        objects: &ObjectsDeleted,
        times: &PhaseTimes,
        mode: Mode,
        last: &LastTry<(Vec<(String, String)>, u64)>,
    ) -> Result<Finished, TryError> {
        let started = Instant::now();
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        fence(&transaction, claim, objects.deleted, times).await?;
        let removed = match mode {
            Mode::Whole => self.remove_all(&transaction, claim, objects).await?,
            Mode::RowByRow => {
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

    /// The statement that deletes the rows, or turns them into tombstones.
    fn removal(&self) -> &'static str {
        if self.tombstones { WRITE_TOMBSTONES } else { DELETE_ROWS }
    }

    /// The usual case: one statement. Afterwards no row may have the claim's id, so if the numbers do not
    /// add up, a try row by row finds out why.
    async fn remove_all(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        objects: &ObjectsDeleted,
    ) -> Result<Removed, TryError> {
        let id = claim.fence.claim;
        let mut dead_letters = 0;
        if !objects.bad.is_empty() {
            let failed = self.fail_rows.run(transaction, id, &objects.bad, true).await?;
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
        self.blame.succeeded();
        Ok(Removed { rows, failed: named(&objects.bad), dead_letters, ..Removed::default() })
    }
}

/// Fences the claim and stamps it as finished, with the times of the steps before.
async fn fence(
    transaction: &Transaction<'_>,
    claim: &Claim,
    objects: usize,
    times: &PhaseTimes,
) -> Result<(), TryError> {
    let fence = transaction.prepare_cached(FENCE).await?;
    let objects = i32::try_from(objects).unwrap_or(i32::MAX);
    let [claim_ms, decrement_ms, delete_ms, evict_ms, wait_ms, hold_ms] = times.before_finish();
    let values: [&(dyn ToSql + Sync); 9] = [
        &claim.fence.claim,
        &claim.fence.worker,
        &objects,
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
        try_join(transaction.batch_execute(BY_KEY), transaction.execute(&fence, &values)).await?;
    if fenced == 0 {
        return Err(TryError::NotFenced);
    }
    failpoint::reached("finish.fenced");
    Ok(())
}

/// Closes the claim with its numbers.
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
    let values: [&(dyn ToSql + Sync); 8] =
        [&claim.fence.claim, &rows_deleted, &finish_ms, &bad, &dead, &ages, &owners, &keys];
    transaction.execute(&count, &values).await?;
    Ok(())
}

fn named(bad: &[BadRow]) -> Vec<(String, String)> {
    bad.iter().map(|bad| (bad.short_code.clone(), bad.error.clone())).collect()
}
