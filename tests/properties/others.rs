//! What others do to the reference: writers put, extend and expire; other people delete rows, end
//! claims and forget them.

use super::{
    reference::{Blame, Content, Paste, Reference, Status, When},
    steps::Answer,
};

impl Reference {
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

    /// Something else deletes the row, if it is still as it was found. What it held stays counted.
    pub fn remove(&mut self, code: &str, found: Status) -> Answer {
        let there = self.pastes.get(code).is_some_and(|paste| paste.status == found);
        if there {
            self.pastes.remove(code);
        }
        Answer::Changed(there)
    }

    /// Somebody ends an open claim by hand, and does nothing about its rows.
    pub fn end_by_hand(&mut self, id: i64, finished: bool) -> Answer {
        let claim = self.claim_mut(id);
        let open = claim.is_open();
        if open {
            let lease = &mut claim.lease;
            (lease.finished, lease.reset, lease.expired) = (finished, !finished, false);
        }
        Answer::Changed(open)
    }

    /// All claims are forgotten, and their numbers start again.
    pub fn forget_claims(&mut self) -> Answer {
        self.claims.clear();
        for paste in self.pastes.values_mut() {
            if let Status::InProgress(Some(id)) = paste.status {
                paste.status = Status::Stale(id);
            }
        }
        Answer::Done
    }
}

fn put(outcome: &str, key: Option<&str>, dropped: bool) -> Answer {
    Answer::Put { outcome: outcome.into(), key: key.map(Into::into), dropped }
}
