//! Step 3: let go of the batch's references, exactly once, and doom the bodies that nobody holds.

mod plan;

use std::collections::{BTreeMap, HashMap};

use deadpool_postgres::Transaction;
use futures_util::future::try_join3;
use tokio_postgres::{Row, types::ToSql};
use tracing::warn;

use self::plan::{Body, Plan};
use super::{
    Worker,
    detach::Bad,
    settle::{ClaimState, LastTry, Mode, TryError},
    split::apply_to_good,
};
use crate::{
    claim::{Claim, Released, StepError},
    failpoint,
    postgres::BY_KEY,
};

const FENCE: &str = include_str!("../../sql/queries/release_fence.sql");
const LOCK_CONTENT: &str = include_str!("../../sql/queries/release_lock_content.sql");
const STILL_NEEDED: &str = include_str!("../../sql/queries/release_still_needed.sql");
const COUNT_HOLDERS: &str = include_str!("../../sql/queries/release_count_holders.sql");
const SUBTRACT: &str = include_str!("../../sql/queries/release_subtract.sql");
const RECOUNT: &str = include_str!("../../sql/queries/release_recount.sql");
const DOOM: &str = include_str!("../../sql/queries/release_doom.sql");
const RECORD: &str = include_str!("../../sql/queries/release_record.sql");

impl Worker {
    /// One short READ COMMITTED transaction, fenced first. Done already: goes on from the record.
    pub async fn release(&self, claim: &Claim) -> Result<Released, StepError> {
        let last = LastTry::default();
        let attempt = |mode| self.try_release(claim, mode, &last);
        let done_already = |state: &ClaimState| {
            let record = state.released.clone()?;
            let (detached, drift) = last.what();
            Some(Released { detached, drift, ..record })
        };
        self.settle(claim.fence, attempt, done_already).await
    }

    async fn try_release(
        &self,
        claim: &Claim,
        mode: Mode,
        last: &LastTry<(Vec<(String, String)>, usize)>,
    ) -> Result<Released, TryError> {
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let fence = transaction.prepare_cached(FENCE).await?;
        let lock = transaction.prepare_cached(LOCK_CONTENT).await?;
        let references = references(claim);
        let hashes: Vec<&[u8]> = references.keys().copied().collect();
        let fenced: [&(dyn ToSql + Sync); 2] = [&claim.fence.claim, &claim.fence.worker];
        let locked: [&(dyn ToSql + Sync); 2] = [&hashes, &claim.fence.claim];
        failpoint::reached("release.before");
        // Sent together, in this order: one round trip. Locks of a claim that is lost do no harm.
        let ((), fenced, locked) = try_join3(
            transaction.batch_execute(BY_KEY),
            transaction.execute(&fence, &fenced),
            transaction.query(&lock, &locked),
        )
        .await?;
        if fenced == 0 {
            return Err(TryError::NotFenced);
        }
        failpoint::reached("release.fenced");
        let mut plan = self.plan(&transaction, claim, &references, &locked).await?;
        let bad = match mode {
            Mode::Whole => {
                let all: Vec<&Body> = plan.bodies.iter().collect();
                write(&transaction, &all).await?;
                Vec::new()
            }
            Mode::Split => {
                let all: Vec<&Body> = plan.bodies.iter().collect();
                let (_, bad) =
                    apply_to_good(&mut transaction, &all, |tx, part| Box::pin(write(tx, part)))
                        .await?;
                bad.into_iter().map(|(body, error)| (body.hash.clone(), error)).collect()
            }
        };
        failpoint::reached("release.counted");
        let bad = plan.remove(claim, bad);
        let mut dead_letters = 0;
        if !bad.is_empty() {
            dead_letters = self.detach(&transaction, claim.fence.claim, &bad, false).await?;
            failpoint::reached("release.detached");
        }
        let released = plan.released(bad);
        record(&transaction, claim.fence.claim, &released, dead_letters).await?;
        failpoint::reached("release.recorded");
        self.tally.suspected(&released.detached);
        last.commits((released.detached.clone(), released.drift));
        transaction.commit().await?;
        failpoint::reached("release.committed");
        Ok(released)
    }

    /// The bodies are locked; now, in a later statement, looks who else needs those that would go.
    async fn plan(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        references: &References<'_>,
        locked: &[Row],
    ) -> Result<Plan, TryError> {
        failpoint::reached("release.content_locked");
        let mut bodies: Vec<Body> = locked.iter().map(|row| Body::new(row, references)).collect();
        let last = |body: &&Body| body.loses_its_last() && !body.is_newer;
        let last: Vec<&[u8]> = bodies.iter().filter(last).map(|body| &*body.hash).collect();
        let needed = transaction.prepare_cached(STILL_NEEDED).await?;
        let needed = transaction.query(&needed, &[&last]).await?;
        let needed = needed.iter().map(|row| row.get::<_, Vec<u8>>("content_hash"));
        let newer = bodies.iter().filter(|body| body.is_newer).map(|body| body.hash.clone());
        let doubtful: Vec<Vec<u8>> = needed.chain(newer).collect();
        if !doubtful.is_empty() {
            recount(transaction, &doubtful, &mut bodies).await?;
        }
        let missing = references.len() - bodies.len();
        let plan = Plan { bodies, missing };
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
                "drift: ref_count was too low; set to the recount"
            );
        }
    }
}

/// The batch's bodies, and the pastes that let go of each.
type References<'a> = HashMap<&'a [u8], Vec<&'a str>>;

fn references(claim: &Claim) -> References<'_> {
    let mut references = References::with_capacity(claim.pastes.len());
    for paste in &claim.pastes {
        if let Some(hash) = &paste.content_hash {
            references.entry(hash).or_default().push(&paste.short_code);
        }
    }
    references
}

/// The counts of these bodies cannot be trusted: how many rows hold each, really? The cold path.
async fn recount(
    transaction: &Transaction<'_>,
    doubtful: &[Vec<u8>],
    bodies: &mut [Body],
) -> Result<(), tokio_postgres::Error> {
    let counted = transaction.query(COUNT_HOLDERS, &[&doubtful]).await?;
    let holders: HashMap<&[u8], i64> =
        counted.iter().map(|row| (row.get("content_hash"), row.get("holders"))).collect();
    for body in bodies {
        body.other_holders = holders.get(&*body.hash).copied().unwrap_or_default();
    }
    Ok(())
}

/// Writes the new counts, and removes the content rows that nobody needs.
async fn write(
    transaction: &Transaction<'_>,
    bodies: &[&Body],
) -> Result<u64, tokio_postgres::Error> {
    let (last, survivors): (Vec<&Body>, Vec<&Body>) =
        bodies.iter().partition(|body| body.loses_its_last() || body.is_newer);
    let (doomed, drifted): (Vec<&Body>, Vec<&Body>) =
        last.into_iter().partition(|body| body.is_doomed());
    let mut written = 0;
    if !survivors.is_empty() {
        let subtract = transaction.prepare_cached(SUBTRACT).await?;
        let references: Vec<i32> = survivors.iter().map(|body| body.references).collect();
        written += transaction.execute(&subtract, &[&hashes(&survivors), &references]).await?;
    }
    failpoint::reached("release.subtracted");
    if !drifted.is_empty() {
        let recount = transaction.prepare_cached(RECOUNT).await?;
        let holders: Vec<i64> = drifted.iter().map(|body| body.other_holders).collect();
        written += transaction.execute(&recount, &[&hashes(&drifted), &holders]).await?;
    }
    if !doomed.is_empty() {
        let doom = transaction.prepare_cached(DOOM).await?;
        written += transaction.execute(&doom, &[&hashes(&doomed)]).await?;
    }
    Ok(written)
}

fn hashes<'a>(bodies: &[&'a Body]) -> Vec<&'a [u8]> {
    bodies.iter().map(|body| &*body.hash).collect()
}

async fn record(
    transaction: &Transaction<'_>,
    claim: i64,
    released: &Released,
    dead_letters: usize,
) -> Result<(), tokio_postgres::Error> {
    let heirs: Vec<&str> = released.doomed.iter().map(|doomed| &*doomed.heir).collect();
    let keys: Vec<&str> = released.doomed.iter().map(|doomed| &*doomed.s3_key).collect();
    let [drift, failed, dead] = [released.drift, released.detached.len(), dead_letters]
        .map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    let record = transaction.prepare_cached(RECORD).await?;
    let told: [&(dyn ToSql + Sync); 7] =
        [&claim, &heirs, &keys, &released.bytes, &drift, &failed, &dead];
    transaction.execute(&record, &told).await?;
    Ok(())
}

impl Plan {
    /// Takes the bad bodies out, and names the pastes that referenced them.
    fn remove(&mut self, claim: &Claim, bad: Vec<(Vec<u8>, String)>) -> Vec<Bad> {
        let bad: BTreeMap<Vec<u8>, String> = bad.into_iter().collect();
        self.bodies.retain(|body| !bad.contains_key(&body.hash));
        let faulty = |paste: &crate::claim::Paste| {
            let error = bad.get(paste.content_hash.as_ref()?)?.clone();
            let short_code = paste.short_code.clone();
            Some(Bad { short_code, error, owed_key: None, own_fault: true })
        };
        claim.pastes.iter().filter_map(faulty).collect()
    }
}
