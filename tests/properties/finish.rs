//! What a finish does to the reference: rows go, and those that do not leave their claim all the same.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reference::{BACKOFF_CAP, Blame, Claim, MAX_ATTEMPTS, Reference, Status, When, backoff},
    steps::Answer,
    story::WORKERS,
};

impl Reference {
    pub fn finish(&mut self, id: i64) -> Answer {
        let claim = self.claims[&id].clone();
        if claim.lease.reset {
            return Answer::Lost;
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
        let gone = claim.taken.keys().filter(|code| !self.pastes.contains_key(*code)).count();
        let mut failed = self.place_keys(id, &claim, refused);
        let rows = self.remove_rows(id, &claim, &mut failed);
        let lease = &mut self.claim_mut(id).lease;
        (lease.finished, lease.rows_deleted) = (true, Some(rows));
        lease.expired = false;
        Answer::Finished { rows, gone: gone as u64, failed }
    }

    /// The batch's rows that are still its own.
    fn ours(&self, id: i64, claim: &Claim) -> BTreeSet<String> {
        let is_ours = |code: &&String| {
            let paste = self.pastes.get(*code);
            paste.is_some_and(|paste| paste.status == Status::InProgress(Some(id)))
        };
        claim.taken.keys().filter(is_ours).cloned().collect()
    }

    /// A key that S3 refused stays with the row that owes it. If that is gone, another row of the
    /// batch stays for it, which is not to blame; if none is left, the claim keeps it. Says which
    /// rows stay.
    fn place_keys(
        &mut self,
        id: i64,
        claim: &Claim,
        refused: BTreeMap<String, String>,
    ) -> BTreeSet<String> {
        let mut spare = self.ours(id, claim);
        let mut stay = BTreeSet::new();
        let (at_home, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            refused.into_iter().partition(|(_, code)| spare.contains(code));
        for (key, code) in at_home {
            spare.remove(&code);
            self.fail_rows(&code, Some(key), Blame::S3, true);
            stay.insert(code);
        }
        // They are taken as they come, each by some key.
        let mut spare: BTreeSet<String> = spare.into_iter().take(lost.len()).collect();
        let mut unowned = lost.len() - spare.len();
        for (key, owner) in lost {
            match self.free_choice(&key, &spare) {
                Some(code) => {
                    spare.remove(&code);
                    self.fail_rows(&code, Some(key), Blame::S3, false);
                    stay.insert(code);
                }
                None if unowned > 0 => {
                    unowned -= 1;
                    self.claim_mut(id).lease.pending_owners.insert(key, owner);
                }
                None => {
                    stay.insert(format!("one of {spare:?} for {key}"));
                }
            }
        }
        stay
    }

    /// What the product has decided where it is free, if that is allowed.
    pub fn free_choice(&self, key: &str, allowed: &BTreeSet<String>) -> Option<String> {
        self.chosen.get(key)?.intersection(allowed).next().cloned()
    }

    fn remove_rows(&mut self, id: i64, claim: &Claim, failed: &mut BTreeSet<String>) -> u64 {
        let mut rows = 0;
        let buries = claim.lease.worker + 1 >= WORKERS;
        for code in self.ours(id, claim) {
            if !buries && self.owner_keeps(&code) {
                self.fail_rows(&code, None, Blame::Owner, true);
                failed.insert(code);
                continue;
            }
            self.bury_or_remove(&code, buries);
            rows += 1;
        }
        rows
    }

    /// Out of its claim, which has let go of its reference.
    fn fail_rows(&mut self, code: &str, owed: Option<String>, blame: Blame, own_fault: bool) {
        let paste = self.paste_mut(code);
        paste.status = Status::NotExpired;
        (paste.body, paste.pending_s3_key) = (None, owed);
        paste.attempts += i16::from(own_fault);
        paste.retry = match own_fault {
            false => When::Later(BACKOFF_CAP),
            true if paste.attempts >= MAX_ATTEMPTS => When::Infinity,
            true => backoff(paste.attempts),
        };
        paste.blame = blame;
    }

    fn bury_or_remove(&mut self, code: &str, buries: bool) {
        if !buries {
            self.pastes.remove(code);
            return;
        }
        let paste = self.paste_mut(code);
        paste.status = Status::Deleted;
        (paste.body, paste.pending_s3_key, paste.retry) = (None, None, When::Unset);
    }
}
