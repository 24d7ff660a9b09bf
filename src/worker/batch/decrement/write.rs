//! Writing the new counts and recording the decrement in the claim row.

use deadpool_postgres::Transaction;
use tokio_postgres::{Row, types::ToSql};

use super::Content;
use crate::{
    claim::Decremented,
    failpoint,
    postgres::bisect::{Limits, Refusal, Write, Writing, all_of},
};

const SUBTRACT: &str = sql!("decrement/subtract");
const RECOUNT: &str = sql!("content/recount");
const DELETE_UNREFERENCED: &str = sql!("content/delete_unreferenced");
const RECORD: &str = sql!("decrement/record");

/// The write that is bisected to find the content rows that cannot be written.
pub(super) struct Counts;

impl Write<&Content> for Counts {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [&Content]) -> Writing<'a> {
        Box::pin(write(transaction, part))
    }

    fn limits(&self) -> Limits {
        Limits::STEP
    }
}

/// Writes the new counts, and deletes the content rows that no paste references. Returns an error
/// if a statement changed fewer rows than expected: a content row that outlives its object would be
/// shared by the next paste with the same content.
pub(super) async fn write(
    transaction: &Transaction<'_>,
    contents: &[&Content],
) -> Result<u64, Refusal> {
    let (last, survivors): (Vec<&Content>, Vec<&Content>) =
        contents.iter().partition(|content| content.is_checked());
    let (unreferenced, drifted): (Vec<&Content>, Vec<&Content>) =
        last.into_iter().partition(|content| content.is_unreferenced());
    let mut written = 0;
    if !survivors.is_empty() {
        let subtract = transaction.prepare_cached(SUBTRACT).await?;
        let references: Vec<i32> = survivors.iter().map(|content| content.references).collect();
        let expected: Vec<i64> = survivors.iter().map(|content| content.left()).collect();
        let values: [&(dyn ToSql + Sync); 3] = [&hashes(&survivors), &references, &expected];
        let rows = transaction.query(&subtract, &values).await?;
        written += all_of(changed(&rows), survivors.len())?;
    }
    failpoint::reached("decrement.subtracted");
    if !drifted.is_empty() {
        let recount = transaction.prepare_cached(RECOUNT).await?;
        let references: Vec<i64> = drifted.iter().map(|content| content.other_references).collect();
        let rows = transaction.query(&recount, &[&hashes(&drifted), &references]).await?;
        written += all_of(changed(&rows), drifted.len())?;
    }
    if !unreferenced.is_empty() {
        let delete = transaction.prepare_cached(DELETE_UNREFERENCED).await?;
        let changed = transaction.execute(&delete, &[&hashes(&unreferenced)]).await?;
        written += all_of(changed, unreferenced.len())?;
    }
    Ok(written)
}

/// Returns how many rows have their new count. A trigger may undo the UPDATE of a row that Postgres then
/// counts as updated: taken for decremented, it would keep a count that is too high forever.
fn changed(rows: &[Row]) -> u64 {
    rows.iter().filter(|row| row.get::<_, Option<bool>>("is_changed") == Some(true)).count() as u64
}

fn hashes<'a>(contents: &[&'a Content]) -> Vec<&'a [u8]> {
    contents.iter().map(|content| &*content.hash).collect()
}

/// Stamps the claim as decremented, with the objects that are to be deleted now: whatever happens to this
/// worker, a reset can pass them on to the rows.
pub(super) async fn record(
    transaction: &Transaction<'_>,
    claim: i64,
    decremented: &Decremented,
    dead_letters: usize,
) -> Result<(), tokio_postgres::Error> {
    let pending_owners: Vec<&str> =
        decremented.unreferenced.iter().map(|pending| &*pending.pending_owner).collect();
    let keys: Vec<&str> = decremented.unreferenced.iter().map(|pending| &*pending.s3_key).collect();
    let [drift, failed, dead] = [decremented.drift, decremented.failed.len(), dead_letters]
        .map(|count| i32::try_from(count).unwrap_or(i32::MAX));
    let record = transaction.prepare_cached(RECORD).await?;
    let values: [&(dyn ToSql + Sync); 7] =
        [&claim, &pending_owners, &keys, &decremented.bytes, &drift, &failed, &dead];
    transaction.execute(&record, &values).await?;
    Ok(())
}
