//! How rows come back in the reference: resets, releases, and sweeps of rows that no open claim
//! covers.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reference::{BATCH_SIZE, Blame, MAX_ATTEMPTS, Paste, Reference, Status, When, backoff},
    steps::{Answer, Sweep},
    verbs::{class, runs_alone},
};

/// How long a row waits for its content row before the watchdog tries again, in seconds.
const DEFERRED: i64 = 60;

/// Bodies that are there, and the one that somebody holds locked.
struct Bodies {
    there: BTreeSet<u8>,
    held: Option<u8>,
}

impl Reference {
    pub fn sweep(&mut self) -> Sweep {
        let expired = self.claims.iter().filter(|(_, claim)| claim.lease.expired);
        let expired: Vec<i64> =
            expired.map(|(id, _)| *id).filter(|id| !self.locked.contains(id)).collect();
        let mut swept = Sweep::default();
        for id in expired {
            swept.add(self.reset(id, true));
        }
        let bodies = self.bodies();
        let claims = &mut self.claims;
        for (code, paste) in &mut self.pastes {
            let (decremented, counts) = match paste.status {
                // It waits for its content row, and its time has come.
                Status::InProgress(None) if matches!(paste.retry, When::Past(_)) => (false, false),
                // Something else marked it.
                Status::InProgress(None) if paste.retry == When::Unset => (false, true),
                // Its claim is over, and may have kept a key for it.
                Status::InProgress(Some(id)) if !claims[&id].is_open() => {
                    let lease = &mut claims.get_mut(&id).expect("a claim of the story").lease;
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
                // By a claim that nobody remembers, as far as another one of its number is over.
                Status::Stale(id) if !claims.get(&id).is_some_and(|claim| claim.is_open()) => {
                    (false, true)
                }
                _ => continue,
            };
            paste.body = paste.body.filter(|_| !decremented);
            paste.retry = When::Unset;
            if counts {
                paste.attempts += 1;
                (paste.retry, paste.blame) = (backoff(paste.attempts), Blame::Worker);
            }
            swept.stranded += u64::from(paste.come_back(&bodies));
        }
        swept
    }

    /// Somebody puts a row back by hand, if it is still as it was found. The key that its claim
    /// remembers for it is then remembered twice.
    pub fn put_back(&mut self, code: &str, found: Status) -> Answer {
        let bodies = self.bodies();
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
            paste.body = None;
            paste.pending_s3_key = paste.pending_s3_key.take().or_else(|| key.cloned());
        }
        paste.come_back(&bodies);
        Answer::Changed(true)
    }

    fn bodies(&self) -> Bodies {
        Bodies { there: self.content.keys().copied().collect(), held: self.held }
    }

    /// All rows go back; with their debts, if they were decremented.
    pub fn reset(&mut self, id: i64, counts: bool) -> Sweep {
        self.assign_pending_keys(id);
        let lease = self.claims[&id].lease.clone();
        let mut done = Sweep { claims: 1, ..Sweep::default() };
        let bodies = self.bodies();
        for paste in self.pastes.values_mut() {
            if paste.status != Status::InProgress(Some(id)) {
                continue;
            }
            paste.body = paste.body.filter(|_| !lease.decremented);
            if counts {
                let alone = lease.rows_claimed == 1 && runs_alone(BATCH_SIZE, class(paste));
                paste.attempts += 1;
                let dead = alone && paste.attempts >= MAX_ATTEMPTS;
                paste.retry = if dead { When::Infinity } else { backoff(paste.attempts) };
                paste.blame = Blame::Worker;
            }
            let back = paste.come_back(&bodies);
            done.rows += usize::from(back);
            done.left += usize::from(!back);
            done.dead_letters += usize::from(paste.retry == When::Infinity);
        }
        let lease = &mut self.claim_mut(id).lease;
        (lease.reset, lease.expired) = (true, false);
        done
    }

    /// Each key goes to its pending_owner; if that is gone, to a row of the batch that owes nothing yet; if
    /// there is none, the claim keeps it.
    fn assign_pending_keys(&mut self, id: i64) {
        let pending_owners = std::mem::take(&mut self.claim_mut(id).lease.pending_owners);
        let ours = Status::InProgress(Some(id));
        let is_ours = |code: &String| self.pastes.get(code).is_some_and(|row| row.status == ours);
        let (found, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            pending_owners.into_iter().partition(|(_, pending_owner)| is_ours(pending_owner));
        for (key, pending_owner) in found {
            self.paste_mut(&pending_owner).pending_s3_key = Some(key);
        }
        let owes_nothing = |row: &Paste| row.status == ours && row.pending_s3_key.is_none();
        let rows = self.pastes.iter().filter(|(_, row)| owes_nothing(row));
        let mut spare: BTreeSet<String> = rows.map(|(code, _)| code.clone()).collect();
        let mut unowned = lost.len().saturating_sub(spare.len());
        for (key, pending_owner) in lost {
            match self.free_choice(&key, &spare) {
                Some(code) => {
                    spare.remove(&code);
                    self.paste_mut(&code).pending_s3_key = Some(key);
                }
                None if unowned > 0 => {
                    unowned -= 1;
                    self.claim_mut(id).lease.pending_owners.insert(key, pending_owner);
                }
                // Some row should owe it: what is really there will differ.
                None => {}
            }
        }
    }
}

impl Paste {
    /// Out of deletion, with its body if that is still there. If somebody holds the body locked, it
    /// stays in progress under no claim and keeps its reference; then the answer is false.
    fn come_back(&mut self, bodies: &Bodies) -> bool {
        self.status = Status::NotExpired;
        let Some(body) = self.body else {
            return true;
        };
        if bodies.held != Some(body) {
            self.body = self.body.filter(|body| bodies.there.contains(body));
            return true;
        }
        (self.status, self.blame) = (Status::InProgress(None), Blame::Locked);
        if !matches!(self.retry, When::Later(_)) {
            self.retry = When::Later(DEFERRED);
        }
        false
    }
}
