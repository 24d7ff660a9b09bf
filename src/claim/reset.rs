//! Resetting claims: all their pastes go back to NOT_EXPIRED, with the objects that they still have to
//! delete, in one transaction that also fences the claim off. Used by the watchdog and by a worker that
//! releases.

mod pending_keys;
mod row_by_row;

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::warn;
use uuid::Uuid;

use self::{
    pending_keys::{PendingKey, assign_pending_keys},
    row_by_row::reset_good,
};
use crate::{
    claim::attempts_with_company,
    config::Settings,
    failpoint,
    postgres::{Fault, planner::IN_PICKED_ORDER},
};

const PASTES: &str = sql!("reset/reset_rows");
const DEFER: &str = sql!("reset/defer_rows");
const CLAIM: &str = sql!("reset/end_claim");

/// As the trigger pastes_verify_content knows it.
const KEEP_HASHES: &str = "SET LOCAL paste_cleanup.keep_missing = 'on'";
/// A claim as the locking read returned it; nothing else is gone by.
#[derive(Debug)]
pub struct LockedClaim {
    pub id: i64,
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
pub enum Why<'a> {
    /// Its worker was silent: counts as an attempt of every row.
    LeaseExpired,
    /// Its worker released it: costs nobody an attempt.
    Released(&'a str),
    /// The same, because much content is missing: its pastes keep their hashes for whoever looks why.
    Braked(&'a str),
    /// The same, and its pastes are tried last, for every one of them failed; these when they were tried
    /// alone, with these errors.
    Failing(&'a str, &'a [(String, String)]),
}

impl<'a> Why<'a> {
    pub fn reason(self) -> &'a str {
        match self {
            Self::LeaseExpired => "worker lease expired",
            Self::Released(reason) | Self::Braked(reason) | Self::Failing(reason, _) => reason,
        }
    }
}

/// What a reset did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Reset {
    pub claims: usize,
    pub rows: usize,
    pub dead_letters: usize,
    /// Rows that cannot be put back now: another transaction holds them, or a trigger refuses or
    /// swallows it. They stay in progress, without an open claim, for a later sweep.
    pub left: usize,
}

/// Resets one locked claim. A row that cannot be put back keeps no other from it.
pub async fn reset(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
) -> Result<Reset, Error> {
    if let Why::Braked(_) = why {
        transaction.batch_execute(KEEP_HASHES).await?;
    }
    let savepoint = transaction.savepoint("reset").await?;
    let refusal = match reset_all(&savepoint, settings, claim, why).await {
        Ok(Some(done)) => {
            savepoint.commit().await?;
            return Ok(done);
        }
        Ok(None) => None,
        Err(refusal) if Fault::of(&refusal) == Fault::Transient => return Err(refusal),
        Err(refusal) => Some(refusal),
    };
    savepoint.rollback().await?;
    reset_good(transaction, settings, claim, why, refusal).await
}

/// `None`: a key found no row to take it over. Its own row must not come back without it.
async fn reset_all(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
) -> Result<Option<Reset>, Error> {
    // Constraints that would wait for the COMMIT are judged here, where the rows can be told apart.
    transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await?;
    if !assign_pending_keys(transaction, claim, None).await?.is_empty() {
        return Ok(None);
    }
    failpoint::reached("reset.pending_keys_assigned");
    transaction.batch_execute(IN_PICKED_ORDER).await?;
    let rows = put_back(transaction, settings, claim, why, None).await?;
    failpoint::reached("reset.pastes_reset");
    Ok(Some(close(transaction, settings, claim, why, &[], &rows).await?))
}

/// `codes`: `None` = all rows of the claim.
async fn put_back(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
    codes: Option<&[String]>,
) -> Result<Vec<Row>, Error> {
    let lease_expired =
        format!("worker lease expired (claim {}, worker {})", claim.id, claim.worker);
    let (counts, last_error) = match why {
        Why::LeaseExpired => (true, Some(lease_expired.as_str())),
        Why::Released(_) | Why::Braked(_) | Why::Failing(..) => (false, None),
    };
    // Only a row that failed alone is dead-lettered.
    let dead_at = (claim.rows_claimed == 1).then_some(i32::from(settings.worker.max_attempts));
    let alone_from = attempts_with_company(settings.worker.batch_size) + 1;
    let cap = settings.worker.backoff_cap.as_secs_f64();
    let last = matches!(why, Why::Failing(..));
    let told: [&(dyn ToSql + Sync); 9] = [
        &claim.id,
        &claim.decremented,
        &counts,
        &last_error,
        &dead_at,
        &cap,
        &alone_from,
        &codes,
        &last,
    ];
    let mut rows = transaction.query(PASTES, &told).await?;
    rows.retain(|row| row.get("is_changed"));
    Ok(rows)
}

/// The claim is over. Keys that found no row stay with it, for the sweep that puts their rows back.
/// Rows that still carry the claim's id then were not put back, even if every statement succeeded.
async fn close(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
    kept: &[PendingKey],
    rows: &[Row],
) -> Result<Reset, Error> {
    if let Why::Failing(_, pastes) = why {
        let (codes, errors): (Vec<&str>, Vec<&str>) =
            pastes.iter().map(|(code, error)| (&**code, &**error)).unzip();
        let cap = settings.worker.backoff_cap.as_secs_f64();
        transaction.execute(DEFER, &[&codes, &errors, &cap]).await?;
    }
    let dead = |row: &&Row| row.get::<_, Option<bool>>("dead_letter") == Some(true);
    let dead_letters = rows.iter().filter(dead).count();
    let dead = i32::try_from(dead_letters).unwrap_or(i32::MAX);
    let (owners, keys): (Vec<&str>, Vec<&str>) =
        kept.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
    let told: [&(dyn ToSql + Sync); 5] = [&claim.id, &why.reason(), &dead, &owners, &keys];
    let closed = transaction.query_one(CLAIM, &told).await?;
    failpoint::reached("reset.closed");
    let stranded = usize::try_from(closed.get::<_, i64>("stranded")).unwrap_or_default();
    let waiting = rows.iter().filter(|row| row.get::<_, bool>("is_deferred")).count();
    if stranded > 0 {
        let id = claim.id;
        warn!(
            claim = id,
            "claim {id}: {stranded} pastes could not be put back; a sweep tries again"
        );
    }
    let left = stranded + waiting;
    Ok(Reset { claims: 1, rows: rows.len() - waiting, dead_letters, left })
}
