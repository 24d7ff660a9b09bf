//! The fence of a decrement, and the locks on its content rows.

use std::{collections::HashSet, time::Duration};

use deadpool_postgres::Transaction;
use futures_util::future::try_join4;
use tokio_postgres::{Row, types::ToSql};

use super::References;
use crate::{
    claim::Claim,
    failpoint,
    postgres::planner::{BY_KEY, ROW_BY_ROW},
    worker::batch::retry::{Mode, TryError},
};

const FENCE: &str = sql!("decrement/fence");
const LOCK: &str = sql!("decrement/lock_content");
const LOCK_NOW: &str = concat!(sql!("decrement/lock_content"), " SKIP LOCKED");
const THERE: &str = sql!("decrement/existing_content");
const ROWS: &str = sql!("decrement/count_rows");
/// Decrements of other batches keep their locks for some milliseconds: they are waited for.
const TRIES: usize = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

pub(in crate::worker) const BY_ANOTHER: &str = "another transaction has locked its content row";

/// The batch's content rows.
#[derive(Debug, Default)]
pub(in crate::worker) struct Locked {
    pub rows: Vec<Row>,
    /// Some keys in content have other spellings: some stores take them for the same object.
    pub keys_are_odd: bool,
    /// Hashes of rows that another transaction has locked and keeps locked.
    pub by_others: Vec<Vec<u8>>,
}

/// Fences the claim, then locks the content rows of its pastes.
pub(in crate::worker) async fn fence_and_lock(
    transaction: &Transaction<'_>,
    claim: &Claim,
    references: &References<'_>,
    mode: Mode,
) -> Result<Locked, TryError> {
    let hashes: Vec<&[u8]> = references.keys().copied().collect();
    let fence = transaction.prepare_cached(FENCE).await?;
    let fenced: [&(dyn ToSql + Sync); 2] = [&claim.fence.claim, &claim.fence.worker];
    failpoint::reached("decrement.before");
    let (fenced, mut locked) = match mode {
        Mode::Whole => {
            let lock = transaction.prepare_cached(LOCK).await?;
            let locked: [&(dyn ToSql + Sync); 2] = [&hashes, &claim.fence.claim];
            let count = transaction.prepare_cached(ROWS).await?;
            let counted: [&(dyn ToSql + Sync); 1] = [&claim.fence.claim];
            // Sent together, in this order: one round trip. Locks of a claim that is lost do no
            // harm. Counted behind the locks: every UPDATE that resets a row locks its content, too
            // (the trigger pastes_verify_content), and sees the claim as decremented from then on.
            let ((), fenced, rows, count) = try_join4(
                transaction.batch_execute(BY_KEY),
                transaction.execute(&fence, &fenced),
                transaction.query(&lock, &locked),
                transaction.query_one(&count, &counted),
            )
            .await?;
            if fenced > 0 && count.get::<_, i64>("rows") != claim.pastes.len() as i64 {
                return Err(TryError::Unaccounted);
            }
            (fenced, Locked { rows, ..Locked::default() })
        }
        Mode::RowByRow => {
            transaction.batch_execute(BY_KEY).await?;
            transaction.batch_execute(ROW_BY_ROW).await?;
            let fenced = transaction.execute(&fence, &fenced).await?;
            (fenced, lock_available(transaction, hashes, claim.fence.claim).await?)
        }
    };
    if fenced == 0 {
        return Err(TryError::NotFenced);
    }
    failpoint::reached("decrement.fenced");
    locked.keys_are_odd = locked.rows.first().is_some_and(|row| row.get("keys_are_odd"));
    Ok(locked)
}

/// Locks the content rows that no other transaction has locked, in up to ten tries. It never waits
/// for a lock, so the order of the rows cannot cause a deadlock.
async fn lock_available(
    transaction: &Transaction<'_>,
    hashes: Vec<&[u8]>,
    claim: i64,
) -> Result<Locked, tokio_postgres::Error> {
    let mut locked = Locked::default();
    let mut left: HashSet<Vec<u8>> = hashes.into_iter().map(<[u8]>::to_vec).collect();
    for tries in 1.. {
        let asked: Vec<&Vec<u8>> = left.iter().collect();
        let rows = transaction.query(LOCK_NOW, &[&asked, &claim]).await?;
        for row in &rows {
            left.remove(row.get::<_, &[u8]>("content_hash"));
        }
        locked.rows.extend(rows);
        let asked: Vec<&Vec<u8>> = left.iter().collect();
        let there = transaction.query(THERE, &[&asked]).await?;
        locked.by_others = there.iter().map(|row| row.get("content_hash")).collect();
        if locked.by_others.is_empty() || tries >= TRIES {
            break;
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    Ok(locked)
}
