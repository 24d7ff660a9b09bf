//! What others do to the reference: the watchdog resets, writers put, extend and expire.

use std::collections::BTreeSet;

use super::{
    reference::{
        BATCH_SIZE, Blame, Content, MAX_ATTEMPTS, Paste, Reference, Status, When, backoff,
    },
    steps::{Answer, Sweep},
    verbs::runs_alone,
};

impl Reference {
    pub fn sweep(&mut self) -> Sweep {
        let silent = self.claims.iter().filter(|(_, claim)| claim.lease.silent);
        let silent: Vec<i64> =
            silent.map(|(id, _)| *id).filter(|id| !self.locked.contains(id)).collect();
        let mut swept = Sweep::default();
        for id in silent {
            let reset = self.reset(id, true);
            swept.claims += 1;
            swept.rows += reset.rows;
            swept.dead_letters += reset.dead_letters;
        }
        let there = self.bodies();
        for paste in self.pastes.values_mut() {
            if paste.status == Status::InProgress(None) {
                paste.come_back(&there);
                paste.attempts += 1;
                (paste.retry, paste.blame) = (backoff(paste.attempts), Blame::Worker);
                swept.strays += 1;
            }
        }
        swept
    }

    fn bodies(&self) -> BTreeSet<u8> {
        self.content.keys().copied().collect()
    }

    /// All rows go back; with their debts, if they were released.
    pub fn reset(&mut self, id: i64, counts: bool) -> Sweep {
        let claim = self.claims[&id].clone();
        let mut done = Sweep::default();
        let there = self.bodies();
        for paste in self.pastes.values_mut() {
            if paste.status != Status::InProgress(Some(id)) {
                continue;
            }
            paste.come_back(&there);
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
        let lease = &mut self.claim_mut(id).lease;
        (lease.reset, lease.silent) = (true, false);
        done
    }

    pub fn put(&mut self, code: &str, body: u8, key: &str, expires: When) -> Answer {
        if let Some(paste) = self.pastes.get(code) {
            let content = paste.body.and_then(|body| self.content.get(&body));
            return put("duplicate", content.map(|content| &*content.key), true);
        }
        self.pastes.insert(code.into(), Paste::new(Some(body), expires));
        if let Some(content) = self.content.get_mut(&body) {
            content.ref_count += 1;
            return put("stored", Some(&content.key), true);
        }
        self.content.insert(body, Content { key: key.into(), ref_count: 1 });
        self.objects.insert(key.into());
        put("stored", Some(key), false)
    }

    pub fn extend(&mut self, code: &str, expires: When, plainly: bool) -> Answer {
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

    pub fn expire_now(&mut self, code: &str) -> Answer {
        let now = self.tick();
        let whole = self.pastes.get_mut(code).filter(|paste| paste.can_be_changed());
        let Some(paste) = whole.filter(|paste| !paste.has_expired()) else {
            return Answer::Changed(false);
        };
        paste.expires = When::Past(now);
        Answer::Changed(true)
    }
}

impl Paste {
    /// Out of deletion, with its body if that is still there.
    fn come_back(&mut self, there: &BTreeSet<u8>) {
        self.status = Status::NotExpired;
        self.body = self.body.filter(|body| there.contains(body));
    }
}

fn put(outcome: &str, key: Option<&str>, dropped: bool) -> Answer {
    Answer::Put { outcome: outcome.into(), key: key.map(Into::into), dropped }
}
