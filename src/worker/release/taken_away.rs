//! Pastes that something else has put back while they were claimed. They keep their references, so the
//! claim must not let go of these. One that was deleted has none any more, and is let go of as usual.

use std::collections::HashSet;

use deadpool_postgres::Transaction;
use tracing::warn;

use super::{Locked, References, TryError};
use crate::claim::Claim;

const THERE: &str = include_str!("../../../sql/queries/finish_there.sql");

/// Leaves the references of such pastes as they are.
pub(super) async fn leave_out(
    transaction: &Transaction<'_>,
    claim: &Claim,
    references: &mut References<'_>,
    locked: &mut Locked,
) -> Result<(), TryError> {
    let id = claim.fence.claim;
    let codes: Vec<&str> = claim.pastes.iter().map(|paste| &*paste.short_code).collect();
    let there = transaction.query(THERE, &[&codes, &id]).await?;
    let not_ours = there.iter().filter(|row| !row.get::<_, bool>("is_ours"));
    let not_ours: HashSet<&str> = not_ours.map(|row| row.get("short_code")).collect();
    if not_ours.is_empty() {
        return Ok(());
    }
    warn!(
        claim = id,
        rows = not_ours.len(),
        "claim {id}: something else has put back {} of its pastes",
        not_ours.len()
    );
    for pastes in references.values_mut() {
        pastes.retain(|paste| !not_ours.contains(&*paste.short_code));
    }
    references.retain(|_, pastes| !pastes.is_empty());
    locked.rows.retain(|row| references.contains_key(row.get::<_, &[u8]>("content_hash")));
    locked.by_others.retain(|hash| references.contains_key(&**hash));
    Ok(())
}
