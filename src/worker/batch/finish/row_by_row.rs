//! A finish row by row: another program deleted a row, another transaction locked one, a trigger raises
//! an error or swallows the DELETE. What can be deleted is deleted; every other row of the batch leaves
//! its claim, without the reference that the decrement has taken.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use deadpool_postgres::Transaction;
use tokio_postgres::Statement;
use tracing::{error, warn};

use super::{FinishStep, Removed, named};
use crate::{
    claim::{Claim, Paste},
    failpoint,
    postgres::{
        Fault,
        bisect::{Failed, Limits, Write, Writing, all_of, apply_to_good},
        describe,
    },
    worker::batch::{
        delete_objects::ObjectsDeleted,
        fail_rows::{BadRow, FailedRows},
        retry::TryError,
    },
};

const EXISTING_ROWS: &str = sql!("finish/existing_rows");
const LOCK_TO_DELETE: &str = sql!("finish/lock_to_delete");
const LOCK_TO_CHANGE: &str = sql!("finish/lock_to_change");
/// A writer locks a row for some milliseconds.
const TRIES: usize = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

const LOCKED: &str = "another transaction has locked its row";
/// The batch's rows, by what can be done with them.
#[derive(Debug, Default)]
struct Rows {
    /// Locked as the removal needs it: can be deleted.
    ours: HashSet<String>,
    /// Locked FOR NO KEY UPDATE only: cannot be deleted, but can be taken out of the claim.
    held: HashSet<String>,
    /// Locked by other transactions: nothing can be done with them.
    blocked: HashSet<String>,
    /// Deleted by another program.
    gone: Vec<String>,
}

impl FinishStep {
    pub(super) async fn remove_good(
        &self,
        transaction: &mut Transaction<'_>,
        claim: &Claim,
        objects: &ObjectsDeleted,
    ) -> Result<Removed, TryError> {
        let id = claim.fence.claim;
        let mut rows = self.lock_rows(transaction, claim).await?;
        failpoint::reached("finish.locked");
        log_gone(id, &rows.gone);
        let (mut bad, mut kept) = place_keys(&objects.bad, &mut rows, claim);
        bad.extend(rows.held.iter().map(|code| uncounted(code, LOCKED)));
        let mut removed = Removed { gone: rows.gone.len() as u64, ..Removed::default() };
        let failed = self.fail_each(transaction, id, &bad).await?;
        kept.extend(failed.keys_without_a_row(&bad));
        removed.dead_letters += failed.dead_letters;
        failpoint::reached("finish.rows_failed");
        let codes: Vec<&Paste> =
            claim.pastes.iter().filter(|paste| rows.ours.contains(&paste.short_code)).collect();
        let blocked = self.delete_good(transaction, id, &codes, &mut removed.rows).await?;
        removed.dead_letters += self.fail_each(transaction, id, &blocked).await?.dead_letters;
        failpoint::reached("finish.leftovers");
        bad.extend(blocked);
        bad.extend(rows.blocked.iter().map(|code| uncounted(code, LOCKED)));
        removed.failed = named(&bad);
        log_kept(id, &kept);
        removed.kept = kept;
        Ok(removed)
    }

    async fn lock_rows(
        &self,
        transaction: &Transaction<'_>,
        claim: &Claim,
    ) -> Result<Rows, tokio_postgres::Error> {
        let id = claim.fence.claim;
        let to_remove = if self.tombstones { LOCK_TO_CHANGE } else { LOCK_TO_DELETE };
        let mut codes: Vec<String> =
            claim.pastes.iter().map(|paste| paste.short_code.clone()).collect();
        let mut rows = Rows::default();
        for tries in 1.. {
            rows.ours.extend(lock(transaction, to_remove, &codes, id).await?);
            let there = transaction.query(EXISTING_ROWS, &[&codes, &id]).await?;
            let there: HashMap<String, bool> =
                there.iter().map(|row| (row.get("short_code"), row.get("is_ours"))).collect();
            let (found, gone) = codes.into_iter().partition(|code| there.contains_key(code));
            rows.gone.extend::<Vec<String>>(gone);
            codes = found;
            codes.retain(|code| there[code] && !rows.ours.contains(code));
            if codes.is_empty() || tries >= TRIES {
                break;
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        rows.held = lock(transaction, LOCK_TO_CHANGE, &codes, id).await?;
        rows.blocked = codes.into_iter().filter(|code| !rows.held.contains(code)).collect();
        Ok(rows)
    }

    /// Deletes what can be deleted, and returns the rest with the reason.
    async fn delete_good(
        &self,
        transaction: &mut Transaction<'_>,
        claim: i64,
        pastes: &[&Paste],
        deleted: &mut u64,
    ) -> Result<Vec<BadRow>, TryError> {
        let blame = &self.blame;
        let remove = transaction.prepare_cached(self.removal()).await?;
        let fresh = |paste: &&Paste| !paste.failed_before;
        let remove = Remove { remove, claim };
        let applied = apply_to_good(transaction, pastes, blame, fresh, &remove);
        let name = |paste: &&Paste| vec![paste.short_code.clone()];
        let applied = applied.await.map_err(|error| TryError::from_search(error, name))?;
        *deleted = applied.written;
        let blocked: Vec<BadRow> = applied
            .failed
            .iter()
            .map(|Failed { unit, error, fault, .. }| BadRow {
                short_code: unit.short_code.clone(),
                error: error.clone(),
                pending_key: None,
                is_row_error: blame.counts(*fault),
            })
            .collect();
        Ok(blocked)
    }

    /// Fails the rows, bisecting them under savepoints if a trigger refuses an UPDATE. A row that
    /// is refused stays in progress until a sweep can reset it. All of them have lost their
    /// reference already.
    async fn fail_each(
        &self,
        transaction: &mut Transaction<'_>,
        claim: i64,
        bad: &[BadRow],
    ) -> Result<FailedRows, TryError> {
        let mut all = FailedRows::default();
        let mut parts = if bad.is_empty() { Vec::new() } else { vec![bad] };
        while let Some(part) = parts.pop() {
            let savepoint = transaction.savepoint("fail").await?;
            match self.fail_rows.run(&savepoint, claim, part, true).await {
                Ok(failed) => {
                    all.dead_letters += failed.dead_letters;
                    all.found.extend(failed.found);
                    savepoint.commit().await?;
                }
                Err(refusal) if Fault::of(&refusal) != Fault::Transient => {
                    savepoint.rollback().await?;
                    match part {
                        [one] => error!(
                            "could not take paste {:?} out of its claim; the watchdog resets it later: {}",
                            one.short_code,
                            describe(&refusal)
                        ),
                        many => parts.extend(many.chunks(many.len().div_ceil(2))),
                    }
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Ok(all)
    }
}

struct Remove {
    remove: Statement,
    claim: i64,
}

impl Write<&Paste> for Remove {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [&Paste]) -> Writing<'a> {
        let codes: Vec<&str> = part.iter().map(|paste| &*paste.short_code).collect();
        Box::pin(async move {
            let removed = transaction.execute(&self.remove, &[&self.claim, &codes]).await?;
            all_of(removed, codes.len())
        })
    }

    fn limits(&self) -> Limits {
        Limits::STEP
    }
}

async fn lock(
    transaction: &Transaction<'_>,
    how: &str,
    codes: &[String],
    claim: i64,
) -> Result<HashSet<String>, tokio_postgres::Error> {
    let rows = transaction.query(how, &[&codes, &claim]).await?;
    Ok(rows.iter().map(|row| row.get("short_code")).collect())
}

/// Chooses a row for each pending object delete: its own row or, if that cannot be changed, another
/// row of the batch, which then is not deleted. Returns the chosen rows, and the keys (with the
/// short codes of their own rows) for which no row is left: the claim keeps those.
fn place_keys(
    bad: &[BadRow],
    rows: &mut Rows,
    claim: &Claim,
) -> (Vec<BadRow>, Vec<(String, String)>) {
    let (mut placed, mut kept) = (Vec::new(), Vec::new());
    let (in_place, lost): (Vec<&BadRow>, Vec<&BadRow>) =
        bad.iter().partition(|bad| rows.can_change(&bad.short_code));
    for bad in in_place {
        rows.take(&bad.short_code);
        placed.push(bad.clone());
    }
    for bad in lost {
        let mut spare = claim.pastes.iter().map(|paste| &paste.short_code);
        let spare = spare.find(|code| rows.can_change(code)).cloned();
        match (spare, &bad.pending_key) {
            (Some(short_code), Some(_)) => {
                rows.take(&short_code);
                placed.push(BadRow { short_code, is_row_error: false, ..bad.clone() });
            }
            (None, Some(key)) => kept.push((bad.short_code.clone(), key.clone())),
            (_, None) => {}
        }
    }
    (placed, kept)
}

fn log_kept(claim: i64, kept: &[(String, String)]) {
    for (owner, key) in kept {
        warn!(
            claim,
            s3_key = ?key,
            "claim {claim} keeps the pending object delete of {key:?}: paste {owner:?} cannot be \
             changed now (deleted, locked, or refused by a trigger); a later sweep tries again"
        );
    }
}

impl Rows {
    fn can_change(&self, code: &str) -> bool {
        self.ours.contains(code) || self.held.contains(code)
    }

    fn take(&mut self, code: &str) {
        self.ours.remove(code);
        self.held.remove(code);
    }
}

fn uncounted(code: &str, error: &str) -> BadRow {
    BadRow { short_code: code.into(), error: error.into(), pending_key: None, is_row_error: false }
}

fn log_gone(claim: i64, gone: &[String]) {
    const NAMED: usize = 10;
    if gone.is_empty() {
        return;
    }
    let named: Vec<&str> = gone.iter().take(NAMED).map(String::as_str).collect();
    let more = if gone.len() > NAMED { ", …" } else { "" };
    warn!(
        claim,
        rows = gone.len(),
        "claim {claim}: another program deleted {} of its pastes: {named:?}{more}",
        gone.len()
    );
}
