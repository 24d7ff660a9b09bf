//! Step 6: the paste rows go, and the claim is closed with what it did.

use futures_util::future::try_join;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::{
    Worker, ages,
    delete_objects::ObjectsGone,
    detach::Bad,
    settle::{ClaimState, LastTry, Mode, TryError},
    split::apply_to_good,
    summary::PhaseTimes,
};
use crate::{
    claim::{Claim, StepError},
    failpoint,
    postgres::BY_KEY,
};

const FENCE: &str = include_str!("../../sql/queries/finish_fence.sql");
const DELETE: &str = include_str!("../../sql/queries/finish_delete.sql");
const BURY: &str = include_str!("../../sql/queries/finish_bury.sql");
const COUNT: &str = include_str!("../../sql/queries/finish_count.sql");

/// What a finish did.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    pub rows: u64,
    /// Pastes that could not be deleted, with the reason.
    pub failed: Vec<(String, String)>,
}

impl Worker {
    /// One transaction, fenced first. Done already: says what was done.
    pub async fn finish(
        &self,
        claim: &Claim,
        objects: &ObjectsGone,
        times: &PhaseTimes,
    ) -> Result<Finished, StepError> {
        let last = LastTry::new(named(&objects.bad));
        let attempt = |mode| self.try_finish(claim, objects, times, mode, &last);
        let done_already =
            |state: &ClaimState| state.finished.map(|rows| Finished { rows, failed: last.what() });
        self.settle(claim.fence, attempt, done_already).await
    }

    async fn try_finish(
        &self,
        claim: &Claim,
        objects: &ObjectsGone,
        times: &PhaseTimes,
        mode: Mode,
        last: &LastTry<Vec<(String, String)>>,
    ) -> Result<Finished, TryError> {
        let started = Instant::now();
        let id = claim.fence.claim;
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let fence = transaction.prepare_cached(FENCE).await?;
        let deleted = i32::try_from(objects.deleted).unwrap_or(i32::MAX);
        let [claim_ms, release_ms, delete_ms, evict_ms, wait_ms, hold_ms] = times.before_finish();
        let done: [&(dyn ToSql + Sync); 9] = [
            &id,
            &self.id,
            &deleted,
            &claim_ms,
            &release_ms,
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
        let mut bad = objects.bad.clone();
        let mut dead_letters = 0;
        if !bad.is_empty() {
            dead_letters += self.detach(&transaction, id, &bad, true).await?;
            failpoint::reached("finish.detached");
        }
        let remove = if self.settings.retention.tombstones.is_zero() { DELETE } else { BURY };
        let remove = transaction.prepare_cached(remove).await?;
        let rows = match mode {
            Mode::Whole => transaction.execute(&remove, &[&id, &None::<Vec<&str>>]).await?,
            Mode::Split => {
                let codes: Vec<&str> =
                    claim.pastes.iter().map(|paste| &*paste.short_code).collect();
                let (rows, stubborn) = apply_to_good(&mut transaction, &codes, |tx, part| {
                    let (remove, id) = (remove.clone(), id);
                    Box::pin(async move { tx.execute(&remove, &[&id, &part]).await })
                })
                .await?;
                // Their references are released and their objects are gone: nothing is owed.
                let stubborn: Vec<Bad> = stubborn
                    .into_iter()
                    .map(|(code, error)| Bad {
                        short_code: code.into(),
                        error,
                        owed_key: None,
                        own_fault: true,
                    })
                    .collect();
                dead_letters += self.detach(&transaction, id, &stubborn, true).await?;
                bad.extend(stubborn);
                rows
            }
        };
        failpoint::reached("finish.removed");
        let count = transaction.prepare_cached(COUNT).await?;
        let finish_ms = i32::try_from(started.elapsed().as_millis()).unwrap_or(i32::MAX);
        let rows_deleted = i32::try_from(rows).unwrap_or(i32::MAX);
        let failed = named(&bad);
        let [bad, dead] =
            [failed.len(), dead_letters].map(|count| i32::try_from(count).unwrap_or(i32::MAX));
        let ages = ages::at_deletion(claim, &failed);
        let told: [&(dyn ToSql + Sync); 6] = [&id, &rows_deleted, &finish_ms, &bad, &dead, &ages];
        transaction.execute(&count, &told).await?;
        failpoint::reached("finish.counted");
        self.tally.suspected(&failed);
        last.commits(failed.clone());
        transaction.commit().await?;
        failpoint::reached("finish.committed");
        Ok(Finished { rows, failed })
    }
}

fn named(bad: &[Bad]) -> Vec<(String, String)> {
    bad.iter().map(|bad| (bad.short_code.clone(), bad.error.clone())).collect()
}
