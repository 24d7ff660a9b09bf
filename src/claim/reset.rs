//! Resets claims: sets their pastes back to NOT_EXPIRED and passes on their pending object deletes, in
//! one transaction that also fences off the worker. Used by the watchdog, by a worker that releases a
//! claim, and by `cleanupctl reset`.
//!
//! ```text
//! assign pending keys to rows ─▶ reset the rows ─▶ end the claim
//!        └ a row cannot be changed: roll back, then the same row by row
//! ```

mod pending_keys;
mod row_by_row;

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::warn;
use uuid::Uuid;

use self::{
    pending_keys::{PendingKey, assign_pending_keys},
    row_by_row::reset_row_by_row,
};
use crate::{
    claim::max_shared_attempts,
    config::Settings,
    failpoint,
    format::counted,
    postgres::{Fault, planner::IN_PICKED_ORDER},
};

const RESET_ROWS: &str = sql!("reset/reset_rows");
const DEFER_ROWS: &str = sql!("reset/defer_rows");
const END_CLAIM: &str = sql!("reset/end_claim");

/// Makes the trigger pastes_verify_content keep the hashes of missing content.
const KEEP_HASHES: &str = "SET LOCAL paste_cleanup.keep_missing = 'on'";

/// A claim as the locking read returned it: the only data that a reset uses.
#[derive(Debug)]
pub struct LockedClaim {
    /// The id of the row in `deletion_claims`.
    pub id: i64,
    /// The worker that made the claim.
    pub worker: Uuid,
    rows_claimed: i32,
    decremented: bool,
    keys: Vec<PendingKey>,
}

impl From<&Row> for LockedClaim {
    fn from(row: &Row) -> Self {
        let owners: Vec<String> = row.get("pending_owners");
        let keys: Vec<String> = row.get("pending_s3_keys");
        Self {
            keys: owners.into_iter().zip(keys).collect(),
            id: row.get("id"),
            worker: row.get("worker"),
            rows_claimed: row.get("rows_claimed"),
            decremented: row.get("decremented"),
        }
    }
}

/// Why a claim is reset.
#[derive(Debug, Clone, Copy)]
pub enum ResetReason<'a> {
    /// Its worker sent no heartbeat: counts as an attempt of every row.
    LeaseExpired,
    /// Its worker released it: does not count as an attempt.
    Released(&'a str),
    /// Released by the safety brake, because much content is missing: the pastes keep their hashes, so
    /// that an operator can find the cause.
    Brake(&'a str),
    /// Released because every paste failed: they are tried last. The pastes that were tried alone, with
    /// their errors.
    AllFailed(&'a str, &'a [(String, String)]),
}

impl<'a> ResetReason<'a> {
    /// Returns the text for `deletion_claims.reset_reason`.
    pub fn text(self) -> &'a str {
        match self {
            Self::LeaseExpired => "worker lease expired",
            Self::Released(text) | Self::Brake(text) | Self::AllFailed(text, _) => text,
        }
    }
}

/// The result of a reset.
#[derive(Debug, Default, Clone, Copy)]
pub struct Reset {
    /// Claims that were ended. A sweep adds them up; 0 if a claim was finished or reset before.
    pub claims: usize,
    /// Pastes that are `NOT_EXPIRED` again.
    pub rows: usize,
    /// Pastes that this attempt made dead letters: they were alone in their claim.
    pub dead_letters: usize,
    /// Rows that cannot be reset now: another transaction has locked them, or a trigger refuses or
    /// swallows the UPDATE. They stay in progress without an open claim, and a later sweep resets them.
    pub left: usize,
}

/// Resets one locked claim. Rows that cannot be reset are skipped.
pub async fn reset(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    reason: ResetReason<'_>,
) -> Result<Reset, Error> {
    if let ResetReason::Brake(_) = reason {
        transaction.batch_execute(KEEP_HASHES).await?;
    }
    let savepoint = transaction.savepoint("reset").await?;
    let refusal = match reset_whole(&savepoint, settings, claim, reason).await {
        Ok(Some(done)) => {
            savepoint.commit().await?;
            return Ok(done);
        }
        Ok(None) => None,
        Err(refusal) if Fault::of(&refusal) == Fault::Transient => return Err(refusal),
        Err(refusal) => Some(refusal),
    };
    savepoint.rollback().await?;
    reset_row_by_row(transaction, settings, claim, reason, refusal).await
}

/// Resets all rows at once. Returns `None` if some key found no row: then the rows must not be
/// reset at once, because the row of that key would lose its pending object delete.
async fn reset_whole(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    reason: ResetReason<'_>,
) -> Result<Option<Reset>, Error> {
    // Deferred constraints would fail at COMMIT, when it is too late to find the row that violates one.
    transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await?;
    if !assign_pending_keys(transaction, claim, None).await?.is_empty() {
        return Ok(None);
    }
    failpoint::reached("reset.pending_keys_assigned");
    transaction.batch_execute(IN_PICKED_ORDER).await?;
    let rows = reset_rows(transaction, settings, claim, reason, None).await?;
    failpoint::reached("reset.pastes_reset");
    Ok(Some(end_claim(transaction, settings, claim, reason, &[], &rows).await?))
}

/// Resets some rows of the claim (`codes` is `None`: all of them) and returns those that changed.
async fn reset_rows(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    reason: ResetReason<'_>,
    codes: Option<&[String]>,
) -> Result<Vec<Row>, Error> {
    let lease_expired =
        format!("worker lease expired (claim {}, worker {})", claim.id, claim.worker);
    let (counts, last_error) = match reason {
        ResetReason::LeaseExpired => (true, Some(lease_expired.as_str())),
        ResetReason::Released(_) | ResetReason::Brake(_) | ResetReason::AllFailed(..) => {
            (false, None)
        }
    };
    // Only a row that failed alone becomes a dead letter.
    let dead_at = (claim.rows_claimed == 1).then_some(i32::from(settings.worker.max_attempts));
    let alone_from = max_shared_attempts(settings.worker.batch_size) + 1;
    let cap = settings.worker.backoff_cap.as_secs_f64();
    let tried_last = matches!(reason, ResetReason::AllFailed(..));
    let parameters: [&(dyn ToSql + Sync); 9] = [
        &claim.id,
        &claim.decremented,
        &counts,
        &last_error,
        &dead_at,
        &cap,
        &alone_from,
        &codes,
        &tried_last,
    ];
    let mut rows = transaction.query(RESET_ROWS, &parameters).await?;
    rows.retain(|row| row.get("is_changed"));
    Ok(rows)
}

/// Ends the claim. Keys that no row could take over stay in it, for the sweep that resets their rows.
/// Rows that still have the claim's id were not reset, even if every statement succeeded.
async fn end_claim(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    reason: ResetReason<'_>,
    kept: &[PendingKey],
    rows: &[Row],
) -> Result<Reset, Error> {
    if let ResetReason::AllFailed(_, pastes) = reason {
        let (codes, errors): (Vec<&str>, Vec<&str>) =
            pastes.iter().map(|(code, error)| (&**code, &**error)).unzip();
        let cap = settings.worker.backoff_cap.as_secs_f64();
        transaction.execute(DEFER_ROWS, &[&codes, &errors, &cap]).await?;
    }
    let is_dead = |row: &&Row| row.get::<_, Option<bool>>("dead_letter") == Some(true);
    let dead_letters = rows.iter().filter(is_dead).count();
    let dead = i32::try_from(dead_letters).unwrap_or(i32::MAX);
    let (owners, keys): (Vec<&str>, Vec<&str>) =
        kept.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
    let parameters: [&(dyn ToSql + Sync); 5] = [&claim.id, &reason.text(), &dead, &owners, &keys];
    let ended = transaction.query_one(END_CLAIM, &parameters).await?;
    failpoint::reached("reset.closed");
    let stranded = usize::try_from(ended.get::<_, i64>("stranded")).unwrap_or_default();
    let deferred = rows.iter().filter(|row| row.get::<_, bool>("is_deferred")).count();
    if stranded > 0 {
        let id = claim.id;
        warn!(
            claim = id,
            stranded,
            "claim {id}: {} could not be reset (locked by other transactions, or a trigger refuses \
             or swallows the UPDATE); a later sweep tries again",
            counted(stranded, "paste")
        );
    }
    let left = stranded + deferred;
    Ok(Reset { claims: 1, rows: rows.len() - deferred, dead_letters, left })
}
