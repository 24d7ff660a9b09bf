//! Claims row by row, after Postgres refused to mark a batch. A row that cannot be marked (it
//! violates the owner's NOT VALID constraint, or a trigger raises an error or undoes the UPDATE)
//! must not stop all claims. It is found by bisection and recorded in `cleanup_unclaimable`,
//! because nothing can be recorded in the row itself.

use deadpool_postgres::{Client, Transaction};
use tokio_postgres::{Row, types::ToSql};
use tracing::warn;

use super::{
    ClaimError, ClaimStep, PASTES, Wanted, expect_our_time, marked, most_attempts, to_claim,
};
use crate::{
    claim::{Claim, DatabaseFault},
    failpoint,
    format::counted,
    postgres::{
        Fault, Unreadable,
        bisect::{ApplyError, Blame, Failed, IN_A_ROW, Write, Writing, all_of, apply_to_good},
        planner::ROW_BY_ROW,
        read,
    },
};

const CANDIDATES: &str = sql!("claim/row_by_row/candidates");
const NEWEST: &str = sql!("claim/row_by_row/newest_due");
const INSERT: &str = sql!("claim/row_by_row/insert");
const MARK: &str = sql!("claim/row_by_row/mark");
const MARKED: &str = sql!("claim/row_by_row/marked");
const ADD_UNCLAIMABLE: &str = sql!("claim/row_by_row/add_unclaimable");
/// When a refused row is tried again. One that is locked or slow is tried after `worker.backoff_cap`.
const RETRY_REFUSED_S: f64 = 24.0 * 3600.0;
/// How many of the pastes that came due last decide whether the rows or the database is at fault.
const NEWEST_TRIED: i32 = IN_A_ROW as i32;
/// How many are named in the log; the table has all of them.
const NAMED: usize = 10;

/// What a claim row by row found.
pub(in crate::worker) enum Found {
    Claim(Claim),
    /// Nothing is due, or other transactions have locked it.
    Nothing,
    /// Only rows that cannot be claimed; from now on claims leave them out.
    Unclaimable,
}

impl ClaimStep {
    /// Claims a few pastes that came due last and never failed. Takes no Redis lock: other claims
    /// start at the other end of the backlog.
    pub(crate) async fn newest_due(&self) -> Result<Option<Claim>, ClaimError> {
        let mut client = self.pool.get().await?;
        match self.claim_among(&mut client, NEWEST, &[&NEWEST_TRIED, &0]).await? {
            Found::Claim(claim) => Ok(Some(claim)),
            Found::Nothing | Found::Unclaimable => Ok(None),
        }
    }

    pub(in crate::worker) async fn claim_good(
        &self,
        client: &mut Client,
        wanted: Wanted,
    ) -> Result<Found, ClaimError> {
        let size = i32::try_from(wanted.size).unwrap_or(i32::MAX);
        let most_attempts = most_attempts(wanted);
        self.claim_among(client, CANDIDATES, &[&size, &most_attempts, &wanted.mark]).await
    }

    /// Marks what can be marked of the rows that this query locks.
    async fn claim_among(
        &self,
        client: &mut Client,
        candidates: &str,
        asked: &[&(dyn ToSql + Sync)],
    ) -> Result<Found, ClaimError> {
        let started = tokio::time::Instant::now();
        let (mut transaction, _) = self.begin_claim(client).await?;
        transaction.batch_execute(ROW_BY_ROW).await?;
        let rows = transaction.query(candidates, asked).await?;
        let codes: Vec<String> = short_codes(&rows)?;
        if codes.is_empty() {
            transaction.rollback().await?;
            return Ok(Found::Nothing);
        }
        failpoint::reached("claim.before");
        let mut savepoint = transaction.savepoint("claim").await?;
        let claim: i64 = savepoint.query_one(INSERT, &[&self.id]).await?.get("id");
        let unclaimable = self.mark_good(&mut savepoint, claim, &codes).await?;
        let rows = savepoint.query(MARKED, &[&claim]).await?;
        expect_our_time(&rows)?;
        if rows.is_empty() && unclaimable.is_empty() {
            return Err(ClaimError::Swallowed);
        }
        let claimed = to_claim(&rows, self.id, started)?;
        match rows.is_empty() {
            true => savepoint.rollback().await?,
            false => savepoint.commit().await?,
        }
        failpoint::reached("claim.marked");
        self.remember(&transaction, &unclaimable).await?;
        if !unclaimable.is_empty() {
            failpoint::reached("claim.remembered");
        }
        self.open.add_unconfirmed();
        transaction.commit().await?;
        self.open.confirm(1);
        failpoint::reached("claim.committed");
        self.tally.claimed(started.elapsed());
        let tried = unclaimable.into_iter().filter(|failed| failed.was_tried);
        self.tally.failed(tried.map(|failed| failed.unit));
        Ok(claimed.map_or(Found::Unclaimable, Found::Claim))
    }

    /// Marks what can be marked and returns the rest. When all of the longest overdue rows fail or wait,
    /// some of those that came due last decide whether the rows or the database is at fault.
    async fn mark_good(
        &self,
        transaction: &mut Transaction<'_>,
        claim: i64,
        codes: &[String],
    ) -> Result<Vec<Failed<String>>, ClaimError> {
        let (failed, all_wait) = match mark(transaction, claim, codes, &self.blame).await {
            Ok(failed) if failed.len() == codes.len() && failed.iter().all(waits) => (failed, true),
            Ok(failed) => return Ok(failed),
            Err(ApplyError::Postgres(error)) => return Err(error.into()),
            Err(ApplyError::Database(failed)) => (failed, false),
        };
        let newest = transaction.query(NEWEST, &[&NEWEST_TRIED, &0]).await?;
        let newest = short_codes(&newest)?;
        let newest: Vec<String> =
            newest.into_iter().filter(|code| !failed.iter().any(|bad| bad.unit == *code)).collect();
        match mark(transaction, claim, &newest, &Blame::default()).await {
            Ok(also_failed) if also_failed.len() < newest.len() => {
                self.blame.succeeded();
                let failed = failed.into_iter().chain(also_failed);
                Ok(failed.map(|bad| put_off(bad, all_wait)).collect())
            }
            // Nothing else is due, and other rows of this run could be marked.
            Ok(_) if all_wait && newest.is_empty() && self.blame.counts(Fault::Unclear) => {
                Ok(failed.into_iter().map(|bad| put_off(bad, true)).collect())
            }
            Ok(_) | Err(ApplyError::Database(_)) if all_wait => {
                let error = failed.into_iter().next().map(|waiting| waiting.error);
                Err(ClaimError::Waiting(error.unwrap_or_default()))
            }
            Ok(_) | Err(ApplyError::Database(_)) => {
                let error = failed.last().map(|bad| bad.error.clone()).unwrap_or_default();
                let pastes = failed.into_iter().map(|bad| (bad.unit, bad.error)).collect();
                Err(ClaimError::Database(DatabaseFault { error, pastes }))
            }
            Err(ApplyError::Postgres(error)) => Err(error.into()),
        }
    }

    async fn remember(
        &self,
        transaction: &Transaction<'_>,
        unclaimable: &[Failed<String>],
    ) -> Result<(), tokio_postgres::Error> {
        if unclaimable.is_empty() {
            return Ok(());
        }
        let soon = self.backoff_cap.as_secs_f64();
        let retry_s = |fault: Fault| match fault {
            Fault::Row | Fault::Unclear => RETRY_REFUSED_S,
            Fault::Locked | Fault::Slow | Fault::Transient => soon,
        };
        let unclaimable: Vec<&Failed<String>> =
            unclaimable.iter().filter(|failed| failed.was_tried).collect();
        let refused =
            |failed: &&Failed<String>| matches!(failed.fault, Fault::Row | Fault::Unclear);
        let doubles: Vec<bool> = unclaimable.iter().map(refused).collect();
        let codes: Vec<&str> = unclaimable.iter().map(|failed| &*failed.unit).collect();
        let errors: Vec<&str> = unclaimable.iter().map(|failed| &*failed.error).collect();
        let retry_s: Vec<f64> = unclaimable.iter().map(|failed| retry_s(failed.fault)).collect();
        transaction.execute(ADD_UNCLAIMABLE, &[&codes, &errors, &retry_s, &doubles]).await?;
        for Failed { unit, error, .. } in unclaimable.iter().take(NAMED) {
            warn!(
                short_code = ?unit,
                "paste {unit:?} cannot be claimed: {error}; claims skip it until its retry_at in \
                 cleanup_unclaimable, or until `cleanupctl requeue`"
            );
        }
        if unclaimable.len() > NAMED {
            let more = counted(unclaimable.len() - NAMED, "more paste");
            warn!("{more} cannot be claimed; cleanup_unclaimable lists all");
        }
        Ok(())
    }
}

fn waits(failed: &Failed<String>) -> bool {
    matches!(failed.fault, Fault::Locked | Fault::Slow)
}

/// When all rows of a batch wait, those that were not tried are put off, too: trying them all takes longer
/// than `worker.backoff_cap` if there are many.
fn put_off(failed: Failed<String>, all_wait: bool) -> Failed<String> {
    Failed { was_tried: failed.was_tried || all_wait, ..failed }
}

fn short_codes(rows: &[Row]) -> Result<Vec<String>, Unreadable> {
    rows.iter().map(|row| read(row, PASTES, "short_code")).collect()
}

async fn mark(
    transaction: &mut Transaction<'_>,
    claim: i64,
    codes: &[String],
    blame: &Blame,
) -> Result<Vec<Failed<String>>, ApplyError<String>> {
    let applied = apply_to_good(transaction, codes, blame, |_| true, &Mark(claim)).await?;
    Ok(applied.failed)
}

struct Mark(i64);

impl Write<String> for Mark {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [String]) -> Writing<'a> {
        Box::pin(async move {
            let rows = transaction.query(MARK, &[&self.0, &part]).await?;
            all_of(marked(&rows).unsigned_abs(), part.len())
        })
    }
}
