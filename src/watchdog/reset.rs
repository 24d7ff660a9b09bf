//! Resetting claims: all their pastes go back to NOT_EXPIRED, with their debts, in one transaction
//! that also fences the claim off. Used by the watchdog and by a worker that gives back.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row};
use tracing::error;
use uuid::Uuid;

use crate::{claim::attempts_with_company, config::Settings, failpoint};

const HEIRS: &str = include_str!("../../sql/queries/reset_heirs.sql");
const SPARE_ROWS: &str = include_str!("../../sql/queries/reset_spare_rows.sql");
const PASTES: &str = include_str!("../../sql/queries/reset_pastes.sql");
const CLAIM: &str = include_str!("../../sql/queries/reset_claim.sql");
/// Such claims are never pruned: they are the last to know the keys.
const KEYS_WITHOUT_A_ROW: &str = "keys without a row";

/// Rows go back one by one, in the order in which they were picked: no other plan keeps it.
pub(super) const IN_ORDER: &str = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off";

/// A claim as the locking read returned it; nothing else is gone by.
#[derive(Debug)]
pub struct LockedClaim {
    pub id: i64,
    pub worker: Uuid,
    rows_claimed: i32,
    released: bool,
    heirs: Vec<String>,
    doomed_keys: Vec<String>,
}

impl From<&Row> for LockedClaim {
    fn from(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            worker: row.get("worker"),
            rows_claimed: row.get("rows_claimed"),
            released: row.get("released"),
            heirs: row.get("heirs"),
            doomed_keys: row.get("doomed_keys"),
        }
    }
}

/// Why a claim is reset.
#[derive(Debug, Clone, Copy)]
pub enum Why<'a> {
    /// Its worker was silent: counts as an attempt of every row.
    WorkerSilent,
    /// Its worker gave it back: costs nobody an attempt.
    GivenBack(&'a str),
}

/// What a reset did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Reset {
    pub claims: usize,
    pub rows: usize,
    pub dead_letters: usize,
}

/// Resets one locked claim.
pub async fn reset(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
) -> Result<Reset, Error> {
    let homeless = hand_on_debts(transaction, claim).await?;
    failpoint::reached("reset.debts_handed_on");
    transaction.batch_execute(IN_ORDER).await?;
    let lease_expired =
        format!("worker lease expired (claim {}, worker {})", claim.id, claim.worker);
    let (counts, last_error, reason) = match why {
        Why::WorkerSilent => (true, Some(lease_expired.as_str()), "worker lease expired"),
        Why::GivenBack(reason) => (false, None, reason),
    };
    // Only a row that failed alone is dead-lettered.
    let dead_at = (claim.rows_claimed == 1).then_some(i32::from(settings.worker.max_attempts));
    let alone_from = attempts_with_company(settings.worker.batch_size) + 1;
    let cap = settings.worker.backoff_cap.as_secs_f64();
    let rows = transaction
        .query(
            PASTES,
            &[&claim.id, &claim.released, &counts, &last_error, &dead_at, &cap, &alone_from],
        )
        .await?;
    failpoint::reached("reset.pastes_reset");
    let reason = if homeless { KEYS_WITHOUT_A_ROW } else { reason };
    let dead = |row: &&Row| row.get::<_, Option<bool>>("dead_letter") == Some(true);
    let dead_letters = rows.iter().filter(dead).count();
    let dead = i32::try_from(dead_letters).unwrap_or(i32::MAX);
    transaction.execute(CLAIM, &[&claim.id, &reason, &dead]).await?;
    failpoint::reached("reset.closed");
    Ok(Reset { claims: 1, rows: rows.len(), dead_letters })
}

/// Every key that the claim doomed goes to the row that owes it. True when a key found no row.
async fn hand_on_debts(transaction: &Transaction<'_>, claim: &LockedClaim) -> Result<bool, Error> {
    if claim.doomed_keys.is_empty() {
        return Ok(false);
    }
    let found = transaction.query(HEIRS, &[&claim.id, &claim.heirs, &claim.doomed_keys]).await?;
    if found.len() == claim.doomed_keys.len() {
        return Ok(false);
    }
    // Somebody deleted paste rows by hand. Their debts go to other rows of the batch.
    let found: HashSet<String> = found.iter().map(|row| row.get("short_code")).collect();
    let pairs = claim.heirs.iter().zip(&claim.doomed_keys);
    let keys: Vec<&String> =
        pairs.filter(|(heir, _)| !found.contains(*heir)).map(|(_, key)| key).collect();
    let needed = i64::try_from(keys.len()).unwrap_or(i64::MAX);
    let spare = transaction.query(SPARE_ROWS, &[&claim.id, &needed]).await?;
    let spare: Vec<String> = spare.iter().map(|row| row.get("short_code")).collect();
    let (carried, homeless) = keys.split_at(spare.len().min(keys.len()));
    let taken = transaction.query(HEIRS, &[&claim.id, &spare, &carried]).await?;
    let taken: HashSet<String> = taken.iter().map(|row| row.get("short_code")).collect();
    // A spare row, too, may have been deleted by hand in between.
    let dropped = spare.iter().zip(carried).filter(|(row, _)| !taken.contains(*row));
    let homeless: Vec<&&String> = homeless.iter().chain(dropped.map(|(_, key)| key)).collect();
    for key in &homeless {
        error!(
            claim = claim.id,
            s3_key = ?key,
            "no paste row is left to remember this object; claim {} keeps its key", claim.id
        );
    }
    Ok(!homeless.is_empty())
}
