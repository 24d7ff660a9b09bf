//! A reset row by row, after the whole claim could not be reset: another transaction has locked a row, or
//! a trigger or constraint refuses or swallows its UPDATE. All other rows are reset.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::{error, warn};

use super::{
    LockedClaim, Reset, ResetReason, end_claim,
    pending_keys::{ASSIGN_KEYS, PendingKey, assign_pending_keys, taken},
    reset_rows,
};
use crate::{
    config::Settings,
    failpoint,
    mutex::Mutex,
    postgres::{
        bisect::{Applied, ApplyError, Blame, Failed, Write, Writing, all_of, apply_to_good},
        describe,
        planner::{IN_PICKED_ORDER, ROW_BY_ROW},
    },
};

const LOCK: &str = sql!("reset/lock_rows");

/// Resets the rows that can be reset. If none can, and Postgres refused the whole claim (`refusal`), the
/// claim stays open. `refusal` is `None` if no row could take over a key.
pub(super) async fn reset_row_by_row(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    claim: &LockedClaim,
    reason: ResetReason<'_>,
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
    let write = ResetRows { settings, claim, reason, rows: Mutex::default() };
    let applied = apply_to_good(transaction, &codes, &Blame::default(), |_| false, &write).await;
    let failed = failed(applied)?;
    if let Some(refusal) = refusal {
        if failed.len() == codes.len() {
            return Err(refusal);
        }
        let id = claim.id;
        warn!(
            claim = id,
            "claim {id}: reset its pastes row by row, because all at once failed: {}",
            describe(&refusal)
        );
    }
    for bad in &failed {
        error!(claim = claim.id, "cannot reset paste {:?}: {}", bad.unit, bad.error);
    }
    failpoint::reached("reset.good_reset");
    let rows = write.rows.into_inner();
    end_claim(transaction, settings, claim, reason, &kept, &rows).await
}

/// Resets some rows, and keeps what Postgres returned for them.
struct ResetRows<'a> {
    settings: &'a Settings,
    claim: &'a LockedClaim,
    reason: ResetReason<'a>,
    rows: Mutex<Vec<Row>>,
}

impl Write<String> for ResetRows<'_> {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [String]) -> Writing<'a> {
        let Self { settings, claim, reason, rows } = self;
        Box::pin(async move {
            let changed = reset_rows(transaction, settings, claim, *reason, Some(part)).await?;
            // Rows that a trigger left unchanged are not included.
            let written = all_of(changed.len() as u64, part.len())?;
            rows.lock().extend(changed);
            Ok(written)
        })
    }
}

/// Returns the rows with a pending object delete that cannot be changed: other rows must take over their
/// keys.
async fn refused_owners(
    transaction: &mut Transaction<'_>,
    claim: &LockedClaim,
    codes: &[String],
) -> Result<HashSet<String>, Error> {
    let codes: HashSet<&String> = codes.iter().collect();
    let keys: Vec<PendingKey> =
        claim.keys.iter().filter(|(owner, _)| codes.contains(owner)).cloned().collect();
    let write = AssignKeys(claim.id);
    let applied = apply_to_good(transaction, &keys, &Blame::default(), |_| false, &write).await;
    let failed = failed(applied)?;
    for bad in &failed {
        error!(
            claim = claim.id,
            "cannot record the pending object delete in paste {:?}: {}; another paste of claim {} \
             takes it over if one can be changed",
            bad.unit.0,
            bad.error,
            claim.id
        );
    }
    Ok(failed.into_iter().map(|bad| bad.unit.0).collect())
}

/// Assigns some keys to their owners, rows of the claim with this id.
struct AssignKeys(i64);

impl Write<PendingKey> for AssignKeys {
    fn write<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        part: &'a [PendingKey],
    ) -> Writing<'a> {
        let (owners, keys): (Vec<&str>, Vec<&str>) =
            part.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
        Box::pin(async move {
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&self.0, &owners, &keys, &None::<Vec<&str>>];
            let found = transaction.query(ASSIGN_KEYS, &parameters).await?;
            all_of(taken(&found).len() as u64, part.len())
        })
    }
}

/// Returns the rows that failed. Whether the rows or the database are at fault makes no difference here.
fn failed<T>(applied: Result<Applied<T>, ApplyError<T>>) -> Result<Vec<Failed<T>>, Error> {
    match applied {
        Ok(applied) => Ok(applied.failed),
        Err(ApplyError::Postgres(error)) => Err(error),
        Err(ApplyError::Database(failed)) => Ok(failed),
    }
}
