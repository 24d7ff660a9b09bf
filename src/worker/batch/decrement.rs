//! Step 3: decrement the ref_count of the batch's content, exactly once, and delete the content rows that
//! lose their last reference.
//!
//! In: a claim. Out: the objects to delete next. One transaction: it stamps the claim as decremented and
//! records these objects in the claim row. A crash before the commit leaves everything as it was. A crash
//! after it leaves a claim whose reset does not decrement again, and passes the objects on to the rows.

mod lock;
mod missing;
mod plan;
mod taken_away;
mod write;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use deadpool_postgres::{Pool, Transaction};
use tracing::warn;

pub(in crate::worker) use self::missing::{MissingContent, judge_missing};
use self::{
    lock::{Locked, fence_and_lock},
    plan::{Content, Plan, References, references},
    taken_away::taken_away,
    write::{Counts, record, write},
};
use super::{
    Tally,
    fail_rows::FailRows,
    retry::{ClaimState, LastTry, Mode, Retry, TryError},
};
use crate::{
    claim::{Claim, Decremented, StepError},
    failpoint,
    format::counted,
    postgres::{
        Fault, Unreadable,
        bisect::{Blame, SWALLOWED, apply_to_good},
        describe,
    },
};

const STILL_REFERENCED: &str = sql!("decrement/still_referenced");
const COUNT_REFERENCES: &str = sql!("content/count_references");

/// Decrements references.
pub(in crate::worker) struct DecrementStep {
    pool: Pool,
    retry: Retry,
    fail_rows: FailRows,
    missing: MissingContent,
    tally: Arc<Tally>,
    blame: Blame,
}

impl DecrementStep {
    pub(crate) fn new(
        pool: Pool,
        retry: Retry,
        fail_rows: FailRows,
        missing: MissingContent,
        tally: Arc<Tally>,
    ) -> Self {
        Self { pool, retry, fail_rows, missing, tally, blame: Blame::default() }
    }

    /// Turns the brake for missing content off (`--override-brake`) or on.
    pub(crate) fn ignore_missing_content(&self, is_ignored: bool) {
        self.missing.ignore(is_ignored);
    }

    /// Decrements in one short READ COMMITTED transaction whose first write is the fence. If an
    /// earlier try was committed, returns what that try recorded.
    pub(crate) async fn run(&self, claim: &Claim) -> Result<Decremented, StepError> {
        let last = LastTry::default();
        let attempt = |mode| self.try_decrement(claim, mode, &last);
        let done_already = |state: &ClaimState| {
            let record = state.decremented.clone()?;
            let (failed, drift) = last.what();
            Some(Decremented { failed, drift, ..record })
        };
        self.retry.step("decrement", claim.fence, attempt, done_already).await
    }

    async fn try_decrement(
        &self,
        claim: &Claim,
        mode: Mode,
        last: &LastTry<(Vec<(String, String)>, usize)>,
    ) -> Result<Decremented, TryError> {
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let references = references(claim);
        let locked = fence_and_lock(&transaction, claim, &references, mode).await?;
        let taken_away = match mode {
            Mode::Whole => HashSet::new(),
            Mode::RowByRow => taken_away(&transaction, claim).await?,
        };
        let mut plan = self.plan(&transaction, claim, &references, locked, taken_away).await?;
        match mode {
            Mode::Whole => {
                let all: Vec<&Content> = plan.contents.iter().collect();
                write(&transaction, &all).await.map_err(TryError::from_refusal)?;
                self.blame.succeeded();
            }
            Mode::RowByRow => self.write_good(&mut transaction, &references, &mut plan).await?,
        }
        failpoint::reached("decrement.counted");
        let mut dead_letters = 0;
        if !plan.bad.is_empty() {
            let failed =
                self.fail_rows.run(&transaction, claim.fence.claim, &plan.bad, false).await;
            // A row that cannot leave the claim now must not stay in it as if it were decremented.
            let cannot_leave = |error: tokio_postgres::Error| match Fault::of(&error) {
                Fault::Transient => TryError::from(error),
                _ => TryError::Release(describe(&error)),
            };
            let failed = failed.map_err(cannot_leave)?;
            if failed.found.len() < plan.bad.len() {
                return Err(TryError::Release(SWALLOWED.into()));
            }
            dead_letters = failed.dead_letters;
            failpoint::reached("decrement.rows_failed");
        }
        let decremented = plan.decremented();
        record(&transaction, claim.fence.claim, &decremented, dead_letters).await?;
        failpoint::reached("decrement.recorded");
        self.tally.suspected(&decremented.failed);
        last.commits((decremented.failed.clone(), decremented.drift));
        transaction.commit().await?;
        failpoint::reached("decrement.committed");
        Ok(decremented)
    }

    /// Writes what can be written. Content rows that cannot be written leave the plan with their pastes.
    async fn write_good(
        &self,
        transaction: &mut Transaction<'_>,
        references: &References<'_>,
        plan: &mut Plan,
    ) -> Result<(), TryError> {
        let blame = &self.blame;
        let all: Vec<&Content> = plan.contents.iter().collect();
        let fresh = |content: &&Content| content.is_fresh;
        let applied = apply_to_good(transaction, &all, blame, fresh, &Counts);
        let name = |content: &&Content| {
            let pastes = references.get(&*content.hash).map(Vec::as_slice).unwrap_or_default();
            pastes.iter().map(|paste| paste.short_code.clone()).collect()
        };
        let failed = applied.await.map_err(|error| TryError::from_search(error, name))?.failed;
        let failed: Vec<_> =
            failed.into_iter().map(|bad| (bad.unit.hash.clone(), bad.error, bad.fault)).collect();
        for (hash, error, fault) in failed {
            plan.take_out(&hash, references, &error, blame.counts(fault));
        }
        Ok(())
    }

    /// Plans the new count of each locked content row. Runs after the statement that locks them, so
    /// that its snapshot shows every paste that still references content that would be deleted.
    async fn plan(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        references: &References<'_>,
        locked: Locked,
        taken_away: HashSet<String>,
    ) -> Result<Plan, TryError> {
        failpoint::reached("decrement.content_locked");
        let contents = locked.rows.iter().map(|row| Content::new(row, references, &taken_away));
        let contents: Result<Vec<Content>, Unreadable> = contents.collect();
        let mut contents = contents.map_err(|error| TryError::Release(error.to_string()))?;
        let last = contents.iter().filter(|content| content.may_be_deleted());
        let last: Vec<&[u8]> = last.map(|content| &*content.hash).collect();
        let referenced = transaction.prepare_cached(STILL_REFERENCED).await?;
        let referenced = transaction.query(&referenced, &[&last]).await?;
        let referenced = referenced.iter().map(|row| row.get::<_, Vec<u8>>("content_hash"));
        let other = contents.iter().filter(|content| {
            content.has_taken_away || content.is_newer && !content.may_be_deleted()
        });
        let other = other.map(|content| content.hash.clone());
        let doubtful: BTreeSet<Vec<u8>> = referenced.chain(other).collect();
        if !doubtful.is_empty() {
            recount(transaction, doubtful, &mut contents).await?;
        }
        let missing = references.len() - contents.len() - locked.by_others.len();
        let keys_are_odd = locked.keys_are_odd;
        let mut plan = Plan { contents, missing, bad: Vec::new(), keys_are_odd, taken_away };
        if missing > 0 {
            self.missing.check(claim, &plan, references, &locked.by_others)?;
        }
        for hash in &locked.by_others {
            plan.take_out(hash, references, lock::BY_ANOTHER, false);
        }
        log_drift(claim, &plan);
        Ok(plan)
    }
}

fn log_drift(claim: &Claim, plan: &Plan) {
    let id = claim.fence.claim;
    if plan.missing > 0 {
        let missing = plan.missing;
        warn!(
            claim = id,
            missing,
            "drift: claim {id}: missing content rows: {missing}; if their objects still exist, \
             `cleanupctl audit` finds them"
        );
    }
    for content in plan.contents.iter().filter(|content| content.drifted()) {
        let (key, found) = (&content.s3_key, content.ref_count);
        let others = content.other_references;
        warn!(
            claim = id,
            s3_key = ?key,
            ref_count = found,
            recount = others,
            "drift: claim {id}: ref_count of {key:?} was wrong ({found}); {} left after this batch",
            counted(others, "reference")
        );
    }
}

/// Counts the references to content whose count cannot be trusted. Rarely needed.
async fn recount(
    transaction: &Transaction<'_>,
    doubtful: BTreeSet<Vec<u8>>,
    contents: &mut [Content],
) -> Result<(), tokio_postgres::Error> {
    let doubtful: Vec<Vec<u8>> = doubtful.into_iter().collect();
    let counted = transaction.query(COUNT_REFERENCES, &[&doubtful]).await?;
    let references: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
    for content in contents {
        content.other_references = references.get(&*content.hash).copied().unwrap_or_default();
    }
    Ok(())
}
