//! Applies a finish to the reference: rows are deleted, or failed and so removed from their claim.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    reference::{BACKOFF_CAP, Claim, LastError, MAX_ATTEMPTS, Reference, Status, When, backoff},
    scenario::WORKERS,
    step::Answer,
};

impl Reference {
    pub(crate) fn finish(&mut self, id: i64) -> Answer {
        let claim = self.claims[&id].clone();
        if claim.lease.reset {
            return Answer::LeaseLost;
        }
        if !claim.lease.decremented {
            return Answer::Refused;
        }
        let refused = claim.refused.clone().expect("objects deleted");
        if claim.lease.finished {
            let rows = claim.lease.rows_deleted.unwrap_or_default();
            return Answer::Finished { rows, gone: 0, failed: refused.into_values().collect() };
        }
        self.claim_mut(id).lease.pending_owners.clear();
        let gone = claim.claimed.keys().filter(|code| !self.pastes.contains_key(*code)).count();
        let mut failed = self.place_keys(id, &claim, refused);
        let rows = self.remove_rows(id, &claim, &mut failed);
        let lease = &mut self.claim_mut(id).lease;
        (lease.finished, lease.rows_deleted) = (true, Some(rows));
        lease.expired = false;
        Answer::Finished { rows, gone: gone as u64, failed }
    }

    /// Returns the rows that are still claimed by this batch.
    fn ours(&self, id: i64, claim: &Claim) -> BTreeSet<String> {
        let is_ours = |code: &&String| {
            let paste = self.pastes.get(*code);
            paste.is_some_and(|paste| paste.status == Status::InProgress(Some(id)))
        };
        claim.claimed.keys().filter(is_ours).cloned().collect()
    }

    /// Assigns the keys that S3 refused, and returns the rows that stay. A key stays with the row
    /// that owns it. If that row is gone, another row of the batch stays for it, without a failed
    /// attempt. If no row is left, the claim keeps the key.
    fn place_keys(
        &mut self,
        id: i64,
        claim: &Claim,
        refused: BTreeMap<String, String>,
    ) -> BTreeSet<String> {
        let mut spare = self.ours(id, claim);
        let mut stay = BTreeSet::new();
        let (owned, unowned): (BTreeMap<_, _>, BTreeMap<_, _>) =
            refused.into_iter().partition(|(_, code)| spare.contains(code));
        for (key, code) in owned {
            spare.remove(&code);
            self.fail_row(&code, Some(key), LastError::S3, true);
            stay.insert(code);
        }
        // Each of the remaining keys takes any spare row.
        let mut spare: BTreeSet<String> = spare.into_iter().take(unowned.len()).collect();
        let mut without_row = unowned.len() - spare.len();
        for (key, owner) in unowned {
            match self.chosen_owner(&key, &spare) {
                Some(code) => {
                    spare.remove(&code);
                    self.fail_row(&code, Some(key), LastError::S3, false);
                    stay.insert(code);
                }
                None if without_row > 0 => {
                    without_row -= 1;
                    self.claim_mut(id).lease.pending_owners.insert(key, owner);
                }
                None => {
                    stay.insert(format!("one of {spare:?} for {key}"));
                }
            }
        }
        stay
    }

    /// Returns the row that the product chose for this key, if it is allowed.
    pub(crate) fn chosen_owner(&self, key: &str, allowed: &BTreeSet<String>) -> Option<String> {
        self.actual_owners.get(key)?.intersection(allowed).next().cloned()
    }

    fn remove_rows(&mut self, id: i64, claim: &Claim, failed: &mut BTreeSet<String>) -> u64 {
        let mut rows = 0;
        let keeps_tombstone = claim.lease.worker + 1 >= WORKERS;
        for code in self.ours(id, claim) {
            if !keeps_tombstone && self.trigger_protects(&code) {
                self.fail_row(&code, None, LastError::OwnerTrigger, true);
                failed.insert(code);
                continue;
            }
            self.delete_or_tombstone(&code, keeps_tombstone);
            rows += 1;
        }
        rows
    }

    /// Takes the row out of its claim, which has decremented its reference.
    fn fail_row(
        &mut self,
        code: &str,
        pending: Option<String>,
        last_error: LastError,
        row_error: bool,
    ) {
        let paste = self.paste_mut(code);
        paste.status = Status::NotExpired;
        (paste.content_id, paste.pending_s3_key) = (None, pending);
        paste.attempts += i16::from(row_error);
        paste.retry = match row_error {
            false => When::Later(BACKOFF_CAP),
            true if paste.attempts >= MAX_ATTEMPTS => When::Infinity,
            true => backoff(paste.attempts),
        };
        paste.last_error = last_error;
    }

    fn delete_or_tombstone(&mut self, code: &str, keeps_tombstone: bool) {
        if !keeps_tombstone {
            self.pastes.remove(code);
            return;
        }
        let paste = self.paste_mut(code);
        paste.status = Status::Deleted;
        (paste.content_id, paste.pending_s3_key, paste.retry) = (None, None, When::Unset);
    }
}
