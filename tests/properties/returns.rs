//! How rows come back in the reference: resets, give-backs, and sweeps of rows that no open claim
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
        let silent = self.claims.iter().filter(|(_, claim)| claim.lease.silent);
        let silent: Vec<i64> =
            silent.map(|(id, _)| *id).filter(|id| !self.locked.contains(id)).collect();
        let mut swept = Sweep::default();
        for id in silent {
            swept.add(self.reset(id, true));
        }
        let bodies = self.bodies();
        let claims = &mut self.claims;
        for (code, paste) in &mut self.pastes {
            let (released, counts) = match paste.status {
                // It waits for its content row, and its time has come.
                Status::InProgress(None) if matches!(paste.retry, When::Past(_)) => (false, false),
                // Something else marked it.
                Status::InProgress(None) if paste.retry == When::Unset => (false, true),
                // Its claim is over, and may have kept a key for it.
                Status::InProgress(Some(id)) if !claims[&id].is_open() => {
                    let lease = &mut claims.get_mut(&id).expect("a claim of the story").lease;
                    let mut kept = lease.heirs.iter();
                    if let Some(key) =
                        kept.find(|(_, heir)| *heir == code).map(|(key, _)| key.clone())
                    {
                        lease.heirs.remove(&key);
                        paste.doomed_key = Some(key);
                    }
                    (lease.released, false)
                }
                // By a claim that nobody remembers, as far as another one of its number is over.
                Status::Stale(id) if !claims.get(&id).is_some_and(|claim| claim.is_open()) => {
                    (false, true)
                }
                _ => continue,
            };
            paste.body = paste.body.filter(|_| !released);
            paste.retry = When::Unset;
            if counts {
                paste.attempts += 1;
                (paste.retry, paste.blame) = (backoff(paste.attempts), Blame::Worker);
            }
            swept.strays += u64::from(paste.come_back(&bodies));
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
        let lease = claim.map(|claim| &claim.lease).filter(|lease| lease.released);
        let Some(paste) = self.pastes.get_mut(code).filter(|paste| paste.status == found) else {
            return Answer::Changed(false);
        };
        if let Some(lease) = lease {
            let key = lease.heirs.iter().find(|(_, heir)| *heir == code).map(|(key, _)| key);
            paste.body = None;
            paste.doomed_key = paste.doomed_key.take().or_else(|| key.cloned());
        }
        paste.come_back(&bodies);
        Answer::Changed(true)
    }

    fn bodies(&self) -> Bodies {
        Bodies { there: self.content.keys().copied().collect(), held: self.held }
    }

    /// All rows go back; with their debts, if they were released.
    pub fn reset(&mut self, id: i64, counts: bool) -> Sweep {
        self.hand_on_debts(id);
        let lease = self.claims[&id].lease.clone();
        let mut done = Sweep { claims: 1, ..Sweep::default() };
        let bodies = self.bodies();
        for paste in self.pastes.values_mut() {
            if paste.status != Status::InProgress(Some(id)) {
                continue;
            }
            paste.body = paste.body.filter(|_| !lease.released);
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
        (lease.reset, lease.silent) = (true, false);
        done
    }

    /// Each key goes to its heir; if that is gone, to a row of the batch that owes nothing yet; if
    /// there is none, the claim keeps it.
    fn hand_on_debts(&mut self, id: i64) {
        let heirs = std::mem::take(&mut self.claim_mut(id).lease.heirs);
        let ours = Status::InProgress(Some(id));
        let is_ours = |code: &String| self.pastes.get(code).is_some_and(|row| row.status == ours);
        let (found, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            heirs.into_iter().partition(|(_, heir)| is_ours(heir));
        for (key, heir) in found {
            self.paste_mut(&heir).doomed_key = Some(key);
        }
        let owes_nothing = |row: &Paste| row.status == ours && row.doomed_key.is_none();
        let rows = self.pastes.iter().filter(|(_, row)| owes_nothing(row));
        let mut spare: BTreeSet<String> = rows.map(|(code, _)| code.clone()).collect();
        let mut homeless = lost.len().saturating_sub(spare.len());
        for (key, heir) in lost {
            match self.free_choice(&key, &spare) {
                Some(code) => {
                    spare.remove(&code);
                    self.paste_mut(&code).doomed_key = Some(key);
                }
                None if homeless > 0 => {
                    homeless -= 1;
                    self.claim_mut(id).lease.heirs.insert(key, heir);
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
