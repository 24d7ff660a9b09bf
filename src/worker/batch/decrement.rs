//! Step 3: let go of the batch's references, exactly once, and delete the bodies that nobody holds.

mod lock;
mod missing;
mod plan;
mod taken_away;

use std::collections::{BTreeSet, HashMap, HashSet};

use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use tracing::warn;

pub(in crate::worker) use self::missing::MissingContent;
use self::{
    lock::Locked,
    plan::{Body, Plan, References, references},
    taken_away::taken_away,
};
use super::{
    Worker,
    retry::{ClaimState, LastTry, Mode, TryError},
};
use crate::{
    claim::{Claim, Decremented, StepError},
    failpoint,
    postgres::{
        Fault, Unreadable,
        bisect::{Refusal, SWALLOWED, Write, Writing, all_of, apply_to_good},
        describe,
    },
};

const STILL_NEEDED: &str = sql!("decrement/still_referenced");
const COUNT_HOLDERS: &str = sql!("content/count_references");
const SUBTRACT: &str = sql!("decrement/subtract");
const RECOUNT: &str = sql!("content/recount");
const DELETE_UNREFERENCED: &str = sql!("content/delete_unreferenced");
const RECORD: &str = sql!("decrement/record");

impl Worker {
    /// One short READ COMMITTED transaction, fenced first. Done already: goes on from the record.
    pub async fn decrement(&self, claim: &Claim) -> Result<Decremented, StepError> {
        let last = LastTry::default();
        let attempt = |mode| self.try_decrement(claim, mode, &last);
        let done_already = |state: &ClaimState| {
            let record = state.decremented.clone()?;
            let (failed, drift) = last.what();
            Some(Decremented { failed, drift, ..record })
        };
        self.retry_step(claim.fence, attempt, done_already).await
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
        let locked = self.fence_and_lock(&transaction, claim, &references, mode).await?;
        let strays = match mode {
            Mode::Whole => HashSet::new(),
            Mode::Careful => taken_away(&transaction, claim).await?,
        };
        let mut plan = self.plan(&transaction, claim, &references, locked, strays).await?;
        match mode {
            Mode::Whole => {
                let all: Vec<&Body> = plan.bodies.iter().collect();
                write(&transaction, &all).await.map_err(TryError::from_refusal)?;
                self.blame.decrement.succeeded();
            }
            Mode::Careful => self.write_good(&mut transaction, &references, &mut plan).await?,
        }
        failpoint::reached("decrement.counted");
        let mut dead_letters = 0;
        if !plan.bad.is_empty() {
            let failed = self.fail_rows(&transaction, claim.fence.claim, &plan.bad, false).await;
            // A row that cannot leave the claim now must not stay in it as a decremented one.
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

    /// Writes what can be written; the bodies that cannot leave the plan with their pastes.
    async fn write_good(
        &self,
        transaction: &mut Transaction<'_>,
        references: &References<'_>,
        plan: &mut Plan,
    ) -> Result<(), TryError> {
        let blame = &self.blame.decrement;
        let all: Vec<&Body> = plan.bodies.iter().collect();
        let fresh = |body: &&Body| body.is_fresh;
        let applied = apply_to_good(transaction, &all, blame, fresh, &Counts);
        let name = |body: &&Body| {
            let pastes = references.get(&*body.hash).map(Vec::as_slice).unwrap_or_default();
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

    /// The bodies are locked; now, in a later statement, looks who else needs those that would go.
    async fn plan(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        references: &References<'_>,
        locked: Locked,
        strays: HashSet<String>,
    ) -> Result<Plan, TryError> {
        failpoint::reached("decrement.content_locked");
        let bodies = locked.rows.iter().map(|row| Body::new(row, references, &strays));
        let bodies: Result<Vec<Body>, Unreadable> = bodies.collect();
        let mut bodies = bodies.map_err(|error| TryError::Release(error.to_string()))?;
        let last = bodies.iter().filter(|body| body.may_go());
        let last: Vec<&[u8]> = last.map(|body| &*body.hash).collect();
        let needed = transaction.prepare_cached(STILL_NEEDED).await?;
        let needed = transaction.query(&needed, &[&last]).await?;
        let needed = needed.iter().map(|row| row.get::<_, Vec<u8>>("content_hash"));
        let other = bodies.iter().filter(|body| body.has_strays || body.is_newer && !body.may_go());
        let other = other.map(|body| body.hash.clone());
        let doubtful: BTreeSet<Vec<u8>> = needed.chain(other).collect();
        if !doubtful.is_empty() {
            recount(transaction, doubtful, &mut bodies).await?;
        }
        let missing = references.len() - bodies.len() - locked.by_others.len();
        let keys_are_odd = locked.keys_are_odd;
        let mut plan = Plan { bodies, missing, bad: Vec::new(), keys_are_odd, strays };
        if missing > 0 {
            self.judge_missing(claim, &plan, references, &locked.by_others)?;
        }
        for hash in &locked.by_others {
            plan.take_out(hash, references, lock::BY_ANOTHER, false);
        }
        self.report_drift(claim, &plan);
        Ok(plan)
    }

    fn report_drift(&self, claim: &Claim, plan: &Plan) {
        let id = claim.fence.claim;
        if plan.missing > 0 {
            warn!(claim = id, bodies = plan.missing, "drift: content rows are missing");
        }
        for body in plan.bodies.iter().filter(|body| body.drifted()) {
            warn!(
                claim = id,
                s3_key = ?body.s3_key,
                ref_count = body.ref_count,
                recount = body.other_holders,
                "drift: ref_count was wrong; set to the recount"
            );
        }
    }
}

/// The counts of these bodies cannot be trusted: how many rows hold each, really? The cold path.
async fn recount(
    transaction: &Transaction<'_>,
    doubtful: BTreeSet<Vec<u8>>,
    bodies: &mut [Body],
) -> Result<(), tokio_postgres::Error> {
    let doubtful: Vec<Vec<u8>> = doubtful.into_iter().collect();
    let counted = transaction.query(COUNT_HOLDERS, &[&doubtful]).await?;
    let holders: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("refs"))).collect();
    for body in bodies {
        body.other_holders = holders.get(&*body.hash).copied().unwrap_or_default();
    }
    Ok(())
}

struct Counts;

impl Write<&Body> for Counts {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [&Body]) -> Writing<'a> {
        Box::pin(write(transaction, part))
    }
}

/// Writes the new counts, and removes the content rows that nobody needs. A row that stays although its
/// DELETE succeeded would outlive its object, and be shared by whoever stores the same body next.
async fn write(transaction: &Transaction<'_>, bodies: &[&Body]) -> Result<u64, Refusal> {
    let (last, survivors): (Vec<&Body>, Vec<&Body>) =
        bodies.iter().partition(|body| body.is_judged());
    let (unreferenced, drifted): (Vec<&Body>, Vec<&Body>) =
        last.into_iter().partition(|body| body.is_unreferenced());
    let mut written = 0;
    if !survivors.is_empty() {
        let subtract = transaction.prepare_cached(SUBTRACT).await?;
        let references: Vec<i32> = survivors.iter().map(|body| body.references).collect();
        let changed = transaction.execute(&subtract, &[&hashes(&survivors), &references]).await?;
        written += all_of(changed, survivors.len())?;
    }
    failpoint::reached("decrement.subtracted");
    if !drifted.is_empty() {
        let recount = transaction.prepare_cached(RECOUNT).await?;
        let holders: Vec<i64> = drifted.iter().map(|body| body.other_holders).collect();
        let changed = transaction.execute(&recount, &[&hashes(&drifted), &holders]).await?;
        written += all_of(changed, drifted.len())?;
    }
    if !unreferenced.is_empty() {
        let delete = transaction.prepare_cached(DELETE_UNREFERENCED).await?;
        let changed = transaction.execute(&delete, &[&hashes(&unreferenced)]).await?;
        written += all_of(changed, unreferenced.len())?;
    }
    Ok(written)
}

fn hashes<'a>(bodies: &[&'a Body]) -> Vec<&'a [u8]> {
    bodies.iter().map(|body| &*body.hash).collect()
}

async fn record(
    transaction: &Transaction<'_>,
    claim: i64,
    decremented: &Decremented,
    dead_letters: usize,
) -> Result<(), tokio_postgres::Error> {
    let pending_owners: Vec<&str> =
        decremented.unreferenced.iter().map(|unreferenced| &*unreferenced.pending_owner).collect();
    let keys: Vec<&str> =
        decremented.unreferenced.iter().map(|unreferenced| &*unreferenced.s3_key).collect();
    let [drift, failed, dead] = [decremented.drift, decremented.failed.len(), dead_letters]
        .map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    let record = transaction.prepare_cached(RECORD).await?;
    let told: [&(dyn ToSql + Sync); 7] =
        [&claim, &pending_owners, &keys, &decremented.bytes, &drift, &failed, &dead];
    transaction.execute(&record, &told).await?;
    Ok(())
}
