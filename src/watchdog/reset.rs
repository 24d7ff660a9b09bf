//! Resetting claims: all their pastes go back to NOT_EXPIRED, with their debts, in one transaction
//! that also fences the claim off. Used by the watchdog and by a worker that gives back.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::{error, warn};
use uuid::Uuid;

use crate::{
    claim::attempts_with_company,
    config::Settings,
    failpoint,
    postgres::{
        Fault,
        bisect::{ApplyError, Blame, CAREFULLY, Write, Writing, all_of, apply_to_good},
        describe,
    },
};

const HEIRS: &str = include_str!("../../sql/queries/reset_heirs.sql");
const SPARE_ROWS: &str = include_str!("../../sql/queries/reset_spare_rows.sql");
const PASTES: &str = include_str!("../../sql/queries/reset_pastes.sql");
const LOCK: &str = include_str!("../../sql/queries/reset_lock.sql");
const DEFER: &str = include_str!("../../sql/queries/reset_defer.sql");
const CLAIM: &str = include_str!("../../sql/queries/reset_claim.sql");
/// Such claims are never pruned: they are the last to know the keys.
pub(crate) const KEYS_WITHOUT_A_ROW: &str = "keys without a row";

/// As the trigger pastes_return knows it.
const KEEP_HASHES: &str = "SET LOCAL paste_cleanup.keep_missing = 'on'";
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
    /// The same, because much content is missing: its pastes keep their hashes for whoever looks why.
    Braked(&'a str),
    /// The same, and its pastes are tried last, for every one of them failed; these when they were tried
    /// alone, with these errors.
    Failing(&'a str, &'a [(String, String)]),
}

impl<'a> Why<'a> {
    pub fn reason(self) -> &'a str {
        match self {
            Self::WorkerSilent => "worker lease expired",
            Self::GivenBack(reason) | Self::Braked(reason) | Self::Failing(reason, _) => reason,
        }
    }
}

/// What a reset did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Reset {
    pub claims: usize,
    pub rows: usize,
    pub dead_letters: usize,
    /// Rows that cannot be put back now: another transaction holds them, or a trigger refuses it.
    /// They stay in progress, without an open claim, for a later sweep.
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
    match reset_all(&savepoint, settings, claim, why).await {
        Ok(done) => {
            savepoint.commit().await?;
            Ok(done)
        }
        Err(refusal) if Fault::of(&refusal) == Fault::Transient => Err(refusal),
        Err(refusal) => {
            savepoint.rollback().await?;
            reset_good(transaction, settings, claim, why, refusal).await
        }
    }
}

async fn reset_all(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
) -> Result<Reset, Error> {
    // Constraints that would wait for the COMMIT are judged here, where the rows can be told apart.
    transaction.batch_execute("SET CONSTRAINTS ALL IMMEDIATE").await?;
    let homeless = hand_on_debts(transaction, claim, None).await?;
    failpoint::reached("reset.debts_handed_on");
    transaction.batch_execute(IN_ORDER).await?;
    let rows = put_back(transaction, settings, claim, why, None).await?;
    failpoint::reached("reset.pastes_reset");
    close(transaction, settings, claim, why, homeless, &rows).await
}

/// Puts back what can be put back.
async fn reset_good(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
    refusal: Error,
) -> Result<Reset, Error> {
    transaction.batch_execute(CAREFULLY).await?;
    transaction.batch_execute(IN_ORDER).await?;
    let rows = transaction.query(LOCK, &[&claim.id]).await?;
    failpoint::reached("reset.locked");
    let mut codes: Vec<String> = rows.iter().map(|row| row.get("short_code")).collect();
    let held_by_others =
        rows.first().map_or(0, |row| row.get::<_, i64>("rows")) - codes.len() as i64;
    let refused = refused_heirs(transaction, claim, &codes).await?;
    codes.retain(|code| !refused.contains(code));
    let homeless = hand_on_debts(transaction, claim, Some(&codes)).await?;
    if codes.is_empty() || (homeless && held_by_others != 0) {
        // Only a row that another transaction holds could remember the key: later.
        return Err(refusal);
    }
    let put_back = PutBack { settings, claim, why, rows: Mutex::default() };
    let applied = apply_to_good(transaction, &codes, &Blame::default(), |_| false, &put_back).await;
    let failed = match applied {
        Ok(applied) => applied.failed,
        Err(ApplyError::Postgres(error)) => return Err(error),
        Err(ApplyError::Database(failed)) => failed,
    };
    if failed.len() == codes.len() {
        return Err(refusal);
    }
    for bad in &failed {
        error!("paste {:?} cannot be put back: {}", bad.unit, bad.error);
    }
    failpoint::reached("reset.good_reset");
    let left = failed.len() + refused.len() + usize::try_from(held_by_others).unwrap_or_default();
    warn!(
        claim = claim.id,
        "claim {}: {left} pastes are left for a later sweep: {}",
        claim.id,
        describe(&refusal)
    );
    let rows = put_back.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    let done = close(transaction, settings, claim, why, homeless, &rows).await?;
    Ok(Reset { left: left + done.left, ..done })
}

/// Puts back some rows, and keeps what Postgres said of them.
struct PutBack<'a> {
    settings: &'a Settings,
    claim: &'a LockedClaim,
    why: Why<'a>,
    rows: Mutex<Vec<Row>>,
}

impl Write<String> for PutBack<'_> {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [String]) -> Writing<'a> {
        let Self { settings, claim, why, rows } = self;
        Box::pin(async move {
            let put = put_back(transaction, settings, claim, *why, Some(part)).await?;
            let written = put.len() as u64;
            rows.lock().unwrap_or_else(PoisonError::into_inner).extend(put);
            Ok(written)
        })
    }
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
        Why::WorkerSilent => (true, Some(lease_expired.as_str())),
        Why::GivenBack(_) | Why::Braked(_) | Why::Failing(..) => (false, None),
    };
    // Only a row that failed alone is dead-lettered.
    let dead_at = (claim.rows_claimed == 1).then_some(i32::from(settings.worker.max_attempts));
    let alone_from = attempts_with_company(settings.worker.batch_size) + 1;
    let cap = settings.worker.backoff_cap.as_secs_f64();
    let last = matches!(why, Why::Failing(..));
    let told: [&(dyn ToSql + Sync); 9] = [
        &claim.id,
        &claim.released,
        &counts,
        &last_error,
        &dead_at,
        &cap,
        &alone_from,
        &codes,
        &last,
    ];
    transaction.query(PASTES, &told).await
}

/// The claim is over.
async fn close(
    transaction: &Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
    homeless: bool,
    rows: &[Row],
) -> Result<Reset, Error> {
    let reason = if homeless { KEYS_WITHOUT_A_ROW } else { why.reason() };
    if let Why::Failing(_, pastes) = why {
        let (codes, errors): (Vec<&str>, Vec<&str>) =
            pastes.iter().map(|(code, error)| (&**code, &**error)).unzip();
        let cap = settings.worker.backoff_cap.as_secs_f64();
        transaction.execute(DEFER, &[&codes, &errors, &cap]).await?;
    }
    let dead = |row: &&Row| row.get::<_, Option<bool>>("dead_letter") == Some(true);
    let dead_letters = rows.iter().filter(dead).count();
    let dead = i32::try_from(dead_letters).unwrap_or(i32::MAX);
    transaction.execute(CLAIM, &[&claim.id, &reason, &dead]).await?;
    failpoint::reached("reset.closed");
    let left = rows.iter().filter(|row| row.get::<_, bool>("waits")).count();
    Ok(Reset { claims: 1, rows: rows.len() - left, dead_letters, left })
}

/// Heirs that a trigger or constraint does not let us change: their keys must go to others.
async fn refused_heirs(
    transaction: &mut Transaction<'_>,
    claim: &LockedClaim,
    codes: &[String],
) -> Result<HashSet<String>, Error> {
    let codes: HashSet<&String> = codes.iter().collect();
    let owed = claim.heirs.iter().cloned().zip(claim.doomed_keys.iter().cloned());
    let owed: Vec<(String, String)> = owed.filter(|(heir, _)| codes.contains(heir)).collect();
    let applied =
        apply_to_good(transaction, &owed, &Blame::default(), |_| false, &HandOn(claim.id)).await;
    let failed = match applied {
        Ok(applied) => applied.failed,
        Err(ApplyError::Postgres(error)) => return Err(error),
        Err(ApplyError::Database(failed)) => failed,
    };
    for bad in &failed {
        error!("paste {:?} cannot take over a key: {}", bad.unit.0, bad.error);
    }
    Ok(failed.into_iter().map(|bad| bad.unit.0).collect())
}

struct HandOn(i64);

impl Write<(String, String)> for HandOn {
    fn write<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        part: &'a [(String, String)],
    ) -> Writing<'a> {
        let (heirs, keys): (Vec<&str>, Vec<&str>) =
            part.iter().map(|(heir, key)| (&**heir, &**key)).unzip();
        Box::pin(async move {
            let told: [&(dyn ToSql + Sync); 4] = [&self.0, &heirs, &keys, &None::<Vec<&str>>];
            let found = transaction.query(HEIRS, &told).await?;
            all_of(found.len() as u64, part.len())
        })
    }
}

/// Every key that the claim doomed goes to the row that owes it. True when a key found no row.
/// `among`: rows that can be changed (`None` = all of the claim).
async fn hand_on_debts(
    transaction: &Transaction<'_>,
    claim: &LockedClaim,
    among: Option<&[String]>,
) -> Result<bool, Error> {
    if claim.doomed_keys.is_empty() {
        return Ok(false);
    }
    let owed: [&(dyn ToSql + Sync); 4] = [&claim.id, &claim.heirs, &claim.doomed_keys, &among];
    let found = transaction.query(HEIRS, &owed).await?;
    if found.len() == claim.doomed_keys.len() {
        return Ok(false);
    }
    // Something else deleted paste rows, or holds them. Their debts go to other rows of the batch.
    let found: HashSet<String> = found.iter().map(|row| row.get("short_code")).collect();
    let pairs = claim.heirs.iter().zip(&claim.doomed_keys);
    let keys: Vec<&String> =
        pairs.filter(|(heir, _)| !found.contains(*heir)).map(|(_, key)| key).collect();
    let needed = i64::try_from(keys.len()).unwrap_or(i64::MAX);
    let spare = transaction.query(SPARE_ROWS, &[&claim.id, &needed, &among]).await?;
    let spare: Vec<String> = spare.iter().map(|row| row.get("short_code")).collect();
    let (carried, homeless) = keys.split_at(spare.len().min(keys.len()));
    let taken = transaction.query(HEIRS, &[&claim.id, &spare, &carried, &among]).await?;
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
