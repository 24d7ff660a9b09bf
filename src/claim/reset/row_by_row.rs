//! A reset that takes nothing for granted: another transaction holds a row of the claim locked, or a
//! trigger or constraint refuses or swallows its UPDATE. All other rows are put back.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::{error, warn};

use super::{
    LockedClaim, Reset, Why, close,
    pending_keys::{OWNERS, PendingKey, assign_pending_keys, taken},
    put_back,
};
use crate::{
    config::Settings,
    failpoint,
    postgres::{
        bisect::{Applied, ApplyError, Blame, Failed, Write, Writing, all_of, apply_to_good},
        describe,
        planner::{IN_PICKED_ORDER, ROW_BY_ROW},
    },
};

const LOCK: &str = sql!("reset/lock_rows");

/// Puts back what can be put back. Nothing can: the claim stays open, if Postgres refused it. Without a
/// refusal, some key found no row to take it over.
pub(super) async fn reset_good(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    why: Why<'_>,
    refusal: Option<Error>,
) -> Result<Reset, Error> {
    transaction.batch_execute(ROW_BY_ROW).await?;
    transaction.batch_execute(IN_PICKED_ORDER).await?;
    let rows = transaction.query(LOCK, &[&claim.id]).await?;
    failpoint::reached("reset.locked");
    let mut codes: Vec<String> = rows.iter().map(|row| row.get("short_code")).collect();
    let refused = refused_owners(transaction, claim, &codes).await?;
    codes.retain(|code| !refused.contains(code));
    let kept = assign_pending_keys(transaction, claim, Some(&codes)).await?;
    let put_back = PutBack { settings, claim, why, rows: Mutex::default() };
    let applied = apply_to_good(transaction, &codes, &Blame::default(), |_| false, &put_back).await;
    let failed = failed(applied)?;
    if let Some(refusal) = refusal {
        if failed.len() == codes.len() {
            return Err(refusal);
        }
        let id = claim.id;
        warn!(claim = id, "claim {id}: not all pastes can be put back: {}", describe(&refusal));
    }
    for bad in &failed {
        error!("paste {:?} cannot be put back: {}", bad.unit, bad.error);
    }
    failpoint::reached("reset.good_reset");
    let rows = put_back.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    close(transaction, settings, claim, why, &kept, &rows).await
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
            // Those that a trigger leaves as they were are not among them.
            let written = all_of(put.len() as u64, part.len())?;
            rows.lock().unwrap_or_else(PoisonError::into_inner).extend(put);
            Ok(written)
        })
    }
}

/// Rows that have an object to delete and cannot be changed: their keys must go to others.
async fn refused_owners(
    transaction: &mut Transaction<'_>,
    claim: &LockedClaim,
    codes: &[String],
) -> Result<HashSet<String>, Error> {
    let codes: HashSet<&String> = codes.iter().collect();
    let keys: Vec<PendingKey> =
        claim.keys.iter().filter(|(owner, _)| codes.contains(owner)).cloned().collect();
    let hand_on = HandOn(claim.id);
    let applied = apply_to_good(transaction, &keys, &Blame::default(), |_| false, &hand_on).await;
    let failed = failed(applied)?;
    for bad in &failed {
        error!("paste {:?} cannot take over a key: {}", bad.unit.0, bad.error);
    }
    Ok(failed.into_iter().map(|bad| bad.unit.0).collect())
}

struct HandOn(i64);

impl Write<PendingKey> for HandOn {
    fn write<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        part: &'a [PendingKey],
    ) -> Writing<'a> {
        let (owners, keys): (Vec<&str>, Vec<&str>) =
            part.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
        Box::pin(async move {
            let told: [&(dyn ToSql + Sync); 4] = [&self.0, &owners, &keys, &None::<Vec<&str>>];
            let found = transaction.query(OWNERS, &told).await?;
            all_of(taken(&found).len() as u64, part.len())
        })
    }
}

/// Whether the rows or the database are to blame makes no difference here.
fn failed<T>(applied: Result<Applied<T>, ApplyError<T>>) -> Result<Vec<Failed<T>>, Error> {
    match applied {
        Ok(applied) => Ok(applied.failed),
        Err(ApplyError::Postgres(error)) => Err(error),
        Err(ApplyError::Database(failed)) => Ok(failed),
    }
}
