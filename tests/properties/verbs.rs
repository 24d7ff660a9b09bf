//! What each step does to the reference, and what it answers.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reference::{
        BACKOFF_CAP, BATCH_SIZE, Blame, Claim, Content, Lease, MAX_ATTEMPTS, Paste, Reference,
        Status, Taken, When,
    },
    stage::size_bytes,
    story::WORKERS,
};

/// An action that is about to happen: it names what is really there.
#[derive(Debug, Clone)]
pub enum Step {
    Claim { worker: usize, size: u32, busy: bool, after: Option<i64> },
    Release(i64),
    DeleteObjects(i64),
    Finish(i64),
    GiveBack(i64),
    Silence(i64),
    Sweep,
    EndBackoff(Vec<(String, i64)>),
    Put { code: String, body: u8, key: String, expires: When },
    Extend { code: String, expires: When, plainly: bool },
    ExpireNow(String),
    Refuse(Option<String>),
}

/// What a step answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Claimed(Option<(i64, BTreeMap<String, Taken>)>),
    /// Doomed keys with their heirs, bytes, bodies whose count was wrong.
    Released(BTreeMap<String, String>, i64, usize),
    /// So many objects are gone.
    Deleted(usize),
    /// Rows deleted, pastes that failed.
    Finished(u64, BTreeSet<String>),
    GivenBack(usize),
    /// The claim was reset: nothing was done.
    Lost,
    /// The claim is not in the expected state: nothing was done.
    Refused,
    Swept(Sweep),
    /// Outcome, key of the body, whether the upload was dropped.
    Put(String, Option<String>, bool),
    /// Whether there was something to do.
    Changed(bool),
    Broke(String),
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sweep {
    pub claims: usize,
    pub rows: usize,
    pub dead_letters: usize,
    pub strays: u64,
}

/// A batch is a tenth the size for each attempt.
fn share(size: u32, attempts: i16) -> usize {
    let size = (0..attempts).fold(size, |size, _| size / 10);
    usize::try_from(size).unwrap_or(usize::MAX).max(1)
}

fn runs_alone(size: u32, attempts: i16) -> bool {
    attempts > 0 && share(size, attempts) == 1
}

impl Step {
    /// The claim whose row it may lock.
    pub fn claim(&self) -> Option<i64> {
        match self {
            Self::Release(id) | Self::Finish(id) | Self::GiveBack(id) | Self::Silence(id) => {
                Some(*id)
            }
            _ => None,
        }
    }

    /// Whether it may put or delete objects.
    pub fn touches_objects(&self) -> bool {
        matches!(self, Self::DeleteObjects(_) | Self::Put { .. })
    }
}

impl Reference {
    /// Does the step, and says what it must answer. Where the product is free (the number of a
    /// claim, which of several rows is heir), its own answer is taken if it is an allowed one.
    pub fn follow(&mut self, step: &Step, said: &Answer) -> Answer {
        match step {
            Step::Claim { worker, size, busy, after } => {
                let id = match said {
                    Answer::Claimed(Some((id, _))) => *id,
                    _ => 0,
                };
                Answer::Claimed(self.claim(*worker, *size, *busy, *after, id))
            }
            Step::Release(id) => self.release(*id, said),
            Step::DeleteObjects(id) => self.delete_objects(*id),
            Step::Finish(id) => self.finish(*id),
            Step::GiveBack(id) => match self.claims[id].is_open() {
                true => Answer::GivenBack(self.reset(*id, false).rows),
                false => Answer::GivenBack(0),
            },
            Step::Silence(id) => {
                self.claim_mut(*id).silent = true;
                Answer::Done
            }
            Step::Sweep => Answer::Swept(self.sweep()),
            Step::EndBackoff(due) => {
                for (code, at) in due {
                    self.paste_mut(code).retry = When::Past(*at);
                }
                Answer::Done
            }
            Step::Put { code, body, key, expires } => self.put(code, *body, key, *expires),
            Step::Extend { code, expires, plainly } => self.extend(code, *expires, *plainly),
            Step::ExpireNow(code) => self.expire_now(code),
            Step::Refuse(text) => {
                self.refusing.clone_from(text);
                Answer::Done
            }
        }
    }

    fn claim_mut(&mut self, id: i64) -> &mut Claim {
        self.claims.get_mut(&id).expect("a claim of the story")
    }

    fn paste_mut(&mut self, code: &str) -> &mut Paste {
        self.pastes.get_mut(code).expect("a paste of the story")
    }

    /// The first due rows, of those the class of the very first, of those its share.
    fn claim(
        &mut self,
        worker: usize,
        size: u32,
        busy: bool,
        after: Option<i64>,
        id: i64,
    ) -> Option<(i64, BTreeMap<String, Taken>)> {
        let mark = after.map_or(i64::MIN, |claim| self.claims[&claim].last_due);
        let due = self.queue().into_iter().filter(|(due, _)| *due >= mark);
        let due: Vec<_> = due.take(usize::try_from(size).expect("a size")).collect();
        let class = self.pastes[&due.first()?.1].attempts;
        if busy && runs_alone(size, class) {
            return None;
        }
        let batch = due.iter().filter(|(_, code)| self.pastes[code].attempts == class);
        let batch: Vec<(i64, String)> = batch.take(share(size, class)).cloned().collect();
        let mut claim = Claim { last_due: batch.last()?.0, ..Claim::default() };
        for (_, code) in &batch {
            let paste = self.paste_mut(code);
            paste.status = Status::InProgress(Some(id));
            let taken = Taken {
                body: paste.body,
                doomed_key: paste.doomed_key.clone(),
                attempts: paste.attempts,
            };
            claim.taken.insert(code.clone(), taken);
        }
        claim.lease = Lease { worker, rows_claimed: batch.len(), ..Lease::default() };
        let taken = claim.taken.clone();
        self.claims.insert(id, claim);
        Some((id, taken))
    }

    fn release(&mut self, id: i64, said: &Answer) -> Answer {
        let claim = self.claim_mut(id);
        if claim.lease.reset {
            return Answer::Lost;
        }
        let mut drift = 0;
        if !claim.lease.released {
            claim.lease.released = true;
            claim.silent = false;
            drift = self.let_go(id, said);
        }
        let claim = self.claim_mut(id);
        claim.in_hand = Some(claim.lease.heirs.clone());
        Answer::Released(claim.lease.heirs.clone(), claim.bytes, drift)
    }

    /// The batch's references go, and with the last one the body. Says how many counts were wrong.
    fn let_go(&mut self, id: i64, said: &Answer) -> usize {
        let taken = self.claims[&id].taken.clone();
        let bodies: BTreeSet<u8> = taken.values().filter_map(|taken| taken.body).collect();
        let mut drift = 0;
        for body in bodies {
            let of_body = taken.iter().filter(|(_, taken)| taken.body == Some(body));
            let codes: BTreeSet<&String> = of_body.map(|(code, _)| code).collect();
            let references = i32::try_from(codes.len()).expect("a small batch");
            let others = self.holders(body);
            let Some(content) = self.content.get_mut(&body) else {
                drift += 1;
                continue;
            };
            if content.ref_count > references {
                content.ref_count -= references;
                continue;
            }
            drift += usize::from(content.ref_count < references || others > 0);
            content.ref_count = others;
            if others == 0 {
                let key = self.content.remove(&body).expect("just seen").key;
                let heir = allowed_heir(said, &key, &codes);
                let claim = self.claim_mut(id);
                claim.bytes += size_bytes(body);
                claim.lease.heirs.insert(key, heir);
            }
        }
        drift
    }

    /// What the release doomed and what the rows owe from earlier, but what S3 refuses.
    fn delete_objects(&mut self, id: i64) -> Answer {
        let claim = &self.claims[&id];
        let owed = (claim.taken.iter())
            .filter_map(|(code, taken)| Some((taken.doomed_key.clone()?, code.clone())));
        let doomed: BTreeMap<String, String> =
            claim.in_hand.clone().expect("released").into_iter().chain(owed).collect();
        let refuses = |key: &String| self.refusing.as_ref().is_some_and(|text| key.contains(text));
        let (refused, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            doomed.into_iter().partition(|(key, _)| refuses(key));
        self.objects.retain(|key| !gone.contains_key(key));
        self.claim_mut(id).refused = Some(refused);
        Answer::Deleted(gone.len())
    }

    fn finish(&mut self, id: i64) -> Answer {
        let claim = self.claims[&id].clone();
        if claim.lease.reset {
            return Answer::Lost;
        }
        if !claim.lease.released {
            return Answer::Refused;
        }
        let refused = claim.refused.expect("objects deleted");
        let failed: BTreeSet<String> = refused.values().cloned().collect();
        if let Some(rows) = claim.lease.rows_deleted {
            return Answer::Finished(rows, failed);
        }
        for (key, code) in refused {
            self.detach(&code, key);
        }
        let gone: Vec<&String> =
            claim.taken.keys().filter(|code| !failed.contains(*code)).collect();
        for code in &gone {
            self.bury_or_remove(code, claim.lease.worker);
        }
        let lease = &mut self.claim_mut(id).lease;
        let rows = gone.len() as u64;
        (lease.finished, lease.rows_deleted) = (true, Some(rows));
        lease.heirs.clear();
        Answer::Finished(rows, failed)
    }

    fn detach(&mut self, code: &str, key: String) {
        let paste = self.paste_mut(code);
        paste.status = Status::NotExpired;
        (paste.body, paste.doomed_key) = (None, Some(key));
        paste.attempts += 1;
        paste.retry = match paste.attempts >= MAX_ATTEMPTS {
            true => When::Infinity,
            false => backoff(paste.attempts),
        };
        paste.blame = Blame::S3;
    }

    fn bury_or_remove(&mut self, code: &str, worker: usize) {
        if worker + 1 < WORKERS {
            self.pastes.remove(code);
            return;
        }
        let paste = self.paste_mut(code);
        paste.status = Status::Deleted;
        (paste.body, paste.doomed_key, paste.retry) = (None, None, When::Unset);
    }

    fn sweep(&mut self) -> Sweep {
        let silent = self.claims.iter().filter(|(_, claim)| claim.silent && claim.is_open());
        let silent: Vec<i64> =
            silent.map(|(id, _)| *id).filter(|id| !self.locked.contains(id)).collect();
        let mut swept = Sweep::default();
        for id in silent {
            let reset = self.reset(id, true);
            swept.claims += 1;
            swept.rows += reset.rows;
            swept.dead_letters += reset.dead_letters;
        }
        for paste in self.pastes.values_mut() {
            if paste.status == Status::InProgress(None) {
                paste.status = Status::NotExpired;
                paste.attempts += 1;
                (paste.retry, paste.blame) = (backoff(paste.attempts), Blame::Worker);
                swept.strays += 1;
            }
        }
        swept
    }

    /// All rows go back; with their debts, if they were released.
    fn reset(&mut self, id: i64, counts: bool) -> Sweep {
        let claim = self.claims[&id].clone();
        let mut done = Sweep::default();
        for paste in self.pastes.values_mut() {
            if paste.status != Status::InProgress(Some(id)) {
                continue;
            }
            paste.status = Status::NotExpired;
            if claim.lease.released {
                paste.body = None;
            }
            if counts {
                let alone = claim.lease.rows_claimed == 1 && runs_alone(BATCH_SIZE, paste.attempts);
                paste.attempts += 1;
                let dead = alone && paste.attempts >= MAX_ATTEMPTS;
                paste.retry = if dead { When::Infinity } else { backoff(paste.attempts) };
                paste.blame = Blame::Worker;
                done.dead_letters += usize::from(dead);
            }
            done.rows += 1;
        }
        for (key, heir) in &claim.lease.heirs {
            self.paste_mut(heir).doomed_key = Some(key.clone());
        }
        self.claim_mut(id).lease.reset = true;
        done
    }

    fn put(&mut self, code: &str, body: u8, key: &str, expires: When) -> Answer {
        if let Some(paste) = self.pastes.get(code) {
            let content = paste.body.and_then(|body| self.content.get(&body));
            return Answer::Put("duplicate".into(), content.map(|c| c.key.clone()), true);
        }
        self.pastes.insert(code.into(), Paste::new(Some(body), expires));
        if let Some(content) = self.content.get_mut(&body) {
            content.ref_count += 1;
            return Answer::Put("stored".into(), Some(content.key.clone()), true);
        }
        self.content.insert(body, Content { key: key.into(), ref_count: 1 });
        self.objects.insert(key.into());
        Answer::Put("stored".into(), Some(key.into()), false)
    }

    fn extend(&mut self, code: &str, expires: When, plainly: bool) -> Answer {
        let Some(paste) = self.pastes.get_mut(code).filter(|paste| paste.can_be_changed()) else {
            return Answer::Changed(false);
        };
        paste.expires = expires;
        if !plainly {
            paste.retry = When::Unset;
            (paste.attempts, paste.blame) = (0, Blame::Nobody);
        }
        Answer::Changed(true)
    }

    fn expire_now(&mut self, code: &str) -> Answer {
        let now = self.tick();
        let whole = self.pastes.get_mut(code).filter(|paste| paste.can_be_changed());
        let Some(paste) = whole.filter(|paste| !paste.has_expired()) else {
            return Answer::Changed(false);
        };
        paste.expires = When::Past(now);
        Answer::Changed(true)
    }
}

/// The square of the attempts in seconds, up to the cap.
fn backoff(attempts: i16) -> When {
    let attempts = i64::from(attempts);
    When::Later((attempts * attempts).min(BACKOFF_CAP))
}

/// Any row of the batch that held the body may owe its key.
fn allowed_heir(said: &Answer, key: &str, holders: &BTreeSet<&String>) -> String {
    let Answer::Released(heirs, ..) = said else {
        return "nobody".into();
    };
    let heir = heirs.get(key).filter(|heir| holders.contains(heir));
    heir.cloned().unwrap_or_else(|| format!("one of {holders:?}"))
}
