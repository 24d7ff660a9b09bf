//! Passes the pending object deletes of a claim on to its rows, so that the next claim of these rows
//! deletes the objects.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, Row, types::ToSql};
use tracing::warn;

use super::LockedClaim;

pub(super) const ASSIGN_KEYS: &str = sql!("reset/assign_pending_keys");
const SPARE_ROWS: &str = sql!("reset/spare_rows");

/// The short code of the paste whose next claim must delete an object, and the object's key.
pub(super) type PendingKey = (String, String);

/// Returns the short codes of the rows that have taken over a key.
pub(super) fn taken(rows: &[Row]) -> HashSet<&str> {
    let taken = rows.iter().filter(|row| row.get::<_, Option<bool>>("is_taken") == Some(true));
    taken.map(|row| row.get("short_code")).collect()
}

/// Assigns every key to its owner or, if that row cannot be changed, to another row of the claim. Returns
/// the keys that no row could take over. `among`: rows that can be changed (`None`: all of the claim).
pub(super) async fn assign_pending_keys(
    transaction: &Transaction<'_>,
    claim: &LockedClaim,
    among: Option<&[String]>,
) -> Result<Vec<PendingKey>, Error> {
    if claim.keys.is_empty() {
        return Ok(Vec::new());
    }
    let (owners, keys): (Vec<&str>, Vec<&str>) =
        claim.keys.iter().map(|(owner, key)| (&**owner, &**key)).unzip();
    let parameters: [&(dyn ToSql + Sync); 4] = [&claim.id, &owners, &keys, &among];
    let found = transaction.query(ASSIGN_KEYS, &parameters).await?;
    let found: HashSet<&str> = taken(&found);
    let mut left: Vec<PendingKey> = claim.keys.clone();
    left.retain(|(owner, _)| !found.contains(&**owner));
    if left.is_empty() {
        return Ok(left);
    }
    // Another program deleted these rows, or another transaction has locked them.
    let needed = i64::try_from(left.len()).unwrap_or(i64::MAX);
    let spare = transaction.query(SPARE_ROWS, &[&claim.id, &needed, &among]).await?;
    let spare: Vec<&str> = spare.iter().map(|row| row.get("short_code")).collect();
    let keys: Vec<&str> = left.iter().take(spare.len()).map(|(_, key)| &**key).collect();
    let took = transaction.query(ASSIGN_KEYS, &[&claim.id, &spare, &keys, &among]).await?;
    // A spare row may have been deleted in between as well.
    let rows: HashSet<&str> = taken(&took);
    let placed = spare.iter().zip(keys).filter(|(row, _)| rows.contains(*row));
    let placed: HashSet<String> = placed.map(|(_, key)| key.into()).collect();
    left.retain(|(_, key)| !placed.contains(key));
    for (owner, key) in &left {
        warn!(
            claim = claim.id,
            s3_key = ?key,
            "claim {} keeps the pending object delete of {key:?}: paste {owner:?} cannot be \
             changed now (deleted, locked, or refused by a trigger); a later sweep tries again",
            claim.id
        );
    }
    Ok(left)
}
