//! Applies resets, releases and sweeps of stranded rows to the reference.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    reference::batch::{class, runs_alone},
    reference::{BATCH_SIZE, LastError, MAX_ATTEMPTS, Paste, Reference, Status, When, backoff},
    step::{Answer, Sweep},
};

/// The time in seconds after which the watchdog retries a row whose content row was locked.
const DEFERRED: i64 = 60;

/// The content rows that exist, and the one that another transaction locks.
struct ContentRows {
    existing: BTreeSet<u8>,
    locked: Option<u8>,
}

impl Reference {
    pub(crate) fn release(&mut self, id: i64) -> Answer {
        Answer::Released(match self.claims[&id].is_open() {
            true => self.reset(id, false),
            false => Sweep::default(),
        })
    }

    pub(crate) fn expire_lease(&mut self, id: i64) -> Answer {
        let claim = self.claim_mut(id);
        claim.lease.expired = claim.is_open();
        Answer::Done
    }

    /// Makes these rows due at these times.
    pub(crate) fn end_backoff(&mut self, due: &[(String, i64)]) -> Answer {
        for (code, at) in due {
            self.paste_mut(code).retry = When::Past(*at);
        }
        Answer::Done
    }

    pub(crate) fn sweep(&mut self) -> Sweep {
        let expired = self.claims.iter().filter(|(_, claim)| claim.lease.expired);
        let expired: Vec<i64> =
            expired.map(|(id, _)| *id).filter(|id| !self.locked_claims.contains(id)).collect();
        let mut swept = Sweep::default();
        for id in expired {
            swept.add(self.reset(id, true));
        }
        let content_rows = self.content_rows();
        let claims = &mut self.claims;
        for (code, paste) in &mut self.pastes {
            let (decremented, counts) = match paste.status {
                // It was deferred, and its retry is due.
                Status::InProgress(None) if matches!(paste.retry, When::Past(_)) => (false, false),
                // Something other than the fleet marked it.
                Status::InProgress(None) if paste.retry == When::Unset => (false, true),
                // Its claim has ended, and may have kept a key for it.
                Status::InProgress(Some(id)) if !claims[&id].is_open() => {
                    let lease = &mut claims.get_mut(&id).expect("a claim of the scenario").lease;
                    let mut kept = lease.pending_owners.iter();
                    if let Some(key) = kept
                        .find(|(_, pending_owner)| *pending_owner == code)
                        .map(|(key, _)| key.clone())
                    {
                        lease.pending_owners.remove(&key);
                        paste.pending_s3_key = Some(key);
                    }
                    (lease.decremented, false)
                }
                // Its claim row is gone, and no other claim with that id is open.
                Status::UnknownClaim(id)
                    if !claims.get(&id).is_some_and(|claim| claim.is_open()) =>
                {
                    (false, true)
                }
                _ => continue,
            };
            paste.content_id = paste.content_id.filter(|_| !decremented);
            paste.retry = When::Unset;
            if counts {
                paste.attempts += 1;
                (paste.retry, paste.last_error) = (backoff(paste.attempts), LastError::Worker);
            }
            swept.stranded += u64::from(paste.reset(&content_rows));
        }
        swept
    }

    /// Resets a row by hand, if it is still in this state. The pending key that its claim has for
    /// it is then recorded twice.
    pub(crate) fn reset_by_hand(&mut self, code: &str, found: Status) -> Answer {
        let content_rows = self.content_rows();
        let claim = match found {
            Status::InProgress(Some(id)) => self.claims.get(&id),
            _ => None,
        };
        let lease = claim.map(|claim| &claim.lease).filter(|lease| lease.decremented);
        let Some(paste) = self.pastes.get_mut(code).filter(|paste| paste.status == found) else {
            return Answer::Changed(false);
        };
        if let Some(lease) = lease {
            let key = lease
                .pending_owners
                .iter()
                .find(|(_, pending_owner)| *pending_owner == code)
                .map(|(key, _)| key);
            paste.content_id = None;
            paste.pending_s3_key = paste.pending_s3_key.take().or_else(|| key.cloned());
        }
        paste.reset(&content_rows);
        Answer::Changed(true)
    }

    fn content_rows(&self) -> ContentRows {
        ContentRows {
            existing: self.content.keys().copied().collect(),
            locked: self.locked_content,
        }
    }

    /// Resets all rows of the claim, with their pending object deletes if it was decremented.
    pub(crate) fn reset(&mut self, id: i64, counts: bool) -> Sweep {
        self.assign_pending_keys(id);
        let lease = self.claims[&id].lease.clone();
        let mut done = Sweep { claims: 1, ..Sweep::default() };
        let content_rows = self.content_rows();
        for paste in self.pastes.values_mut() {
            if paste.status != Status::InProgress(Some(id)) {
                continue;
            }
            paste.content_id = paste.content_id.filter(|_| !lease.decremented);
            if counts {
                let alone = lease.rows_claimed == 1 && runs_alone(BATCH_SIZE, class(paste));
                paste.attempts += 1;
                let dead = alone && paste.attempts >= MAX_ATTEMPTS;
                paste.retry = if dead { When::Infinity } else { backoff(paste.attempts) };
                paste.last_error = LastError::Worker;
            }
            let is_reset = paste.reset(&content_rows);
            done.rows += usize::from(is_reset);
            done.deferred += usize::from(!is_reset);
            done.dead_letters += usize::from(paste.retry == When::Infinity);
        }
        let lease = &mut self.claim_mut(id).lease;
        (lease.reset, lease.expired) = (true, false);
        done
    }

    /// Assigns each pending key to its owner; if that row is gone, to a row of the batch without a
    /// pending key; if there is none, the claim keeps it.
    fn assign_pending_keys(&mut self, id: i64) {
        let pending_owners = std::mem::take(&mut self.claim_mut(id).lease.pending_owners);
        let ours = Status::InProgress(Some(id));
        let is_ours = |code: &String| self.pastes.get(code).is_some_and(|row| row.status == ours);
        let (owned, unowned): (BTreeMap<_, _>, BTreeMap<_, _>) =
            pending_owners.into_iter().partition(|(_, pending_owner)| is_ours(pending_owner));
        for (key, pending_owner) in owned {
            self.paste_mut(&pending_owner).pending_s3_key = Some(key);
        }
        let has_no_key = |row: &Paste| row.status == ours && row.pending_s3_key.is_none();
        let rows = self.pastes.iter().filter(|(_, row)| has_no_key(row));
        let mut spare: BTreeSet<String> = rows.map(|(code, _)| code.clone()).collect();
        let mut without_row = unowned.len().saturating_sub(spare.len());
        for (key, pending_owner) in unowned {
            match self.chosen_owner(&key, &spare) {
                Some(code) => {
                    spare.remove(&code);
                    self.paste_mut(&code).pending_s3_key = Some(key);
                }
                None if without_row > 0 => {
                    without_row -= 1;
                    self.claim_mut(id).lease.pending_owners.insert(key, pending_owner);
                }
                // Some row should have it: the comparison with the tables will fail.
                None => {}
            }
        }
    }
}

impl Paste {
    /// Resets the row; it keeps its reference if the content row still exists. Returns false if the
    /// content row is locked: the row then stays in progress under no claim, with its reference.
    fn reset(&mut self, content_rows: &ContentRows) -> bool {
        self.status = Status::NotExpired;
        let Some(content_id) = self.content_id else {
            return true;
        };
        if content_rows.locked != Some(content_id) {
            self.content_id =
                self.content_id.filter(|content_id| content_rows.existing.contains(content_id));
            return true;
        }
        (self.status, self.last_error) = (Status::InProgress(None), LastError::Locked);
        if !matches!(self.retry, When::Later(_)) {
            self.retry = When::Later(DEFERRED);
        }
        false
    }
}
