//! Pastes that no longer belong to the claim: another program reset or deleted them while they were
//! claimed. Nothing records what became of their references, so their content is recounted.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tracing::warn;

use super::TryError;
use crate::claim::Claim;

const EXISTING_ROWS: &str = sql!("finish/existing_rows");

/// Returns their short codes. Must run after their content is locked.
pub(in crate::worker) async fn taken_away(
    transaction: &Transaction<'_>,
    claim: &Claim,
) -> Result<HashSet<String>, TryError> {
    let id = claim.fence.claim;
    let mut codes: HashSet<String> =
        claim.pastes.iter().map(|paste| paste.short_code.clone()).collect();
    let all: Vec<&str> = claim.pastes.iter().map(|paste| &*paste.short_code).collect();
    for row in transaction.query(EXISTING_ROWS, &[&all, &id]).await? {
        if row.get("is_ours") {
            codes.remove(row.get::<_, &str>("short_code"));
        }
    }
    if !codes.is_empty() {
        let rows = codes.len();
        warn!(
            claim = id,
            rows,
            "claim {id}: another program reset or deleted {rows} of its pastes; recounting \
             their content"
        );
    }
    Ok(codes)
}
