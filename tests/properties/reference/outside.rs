//! Applies what happens outside the fleet to the reference: writers put, extend and expire;
//! operators delete rows, end claims and truncate them.

use crate::{
    reference::{Content, LastError, Paste, Reference, Status, When},
    step::Answer,
};

impl Reference {
    pub(crate) fn put(&mut self, code: &str, content_id: u8, key: &str, expires: When) -> Answer {
        if let Some(paste) = self.pastes.get(code) {
            let content = paste.content_id.and_then(|content_id| self.content.get(&content_id));
            return put("duplicate", content.map(|content| &*content.key), true);
        }
        self.pastes.insert(code.into(), Paste::new(Some(content_id), expires));
        if let Some(content) = self.content.get_mut(&content_id) {
            content.ref_count += 1;
            return put("stored", Some(&content.key), true);
        }
        self.content.insert(content_id, Content { key: key.into(), ref_count: 1 });
        self.objects.insert(key.into());
        put("stored", Some(key), false)
    }

    pub(crate) fn extend(&mut self, code: &str, expires: When, plain_update: bool) -> Answer {
        let Some(paste) = self.pastes.get_mut(code).filter(|paste| paste.can_be_changed()) else {
            return Answer::Changed(false);
        };
        paste.expires = expires;
        if !plain_update {
            paste.retry = When::Unset;
            (paste.attempts, paste.last_error) = (0, LastError::None);
        }
        Answer::Changed(true)
    }

    pub(crate) fn expire_now(&mut self, code: &str) -> Answer {
        let now = self.tick();
        let changeable = self.pastes.get_mut(code).filter(|paste| paste.can_be_changed());
        let Some(paste) = changeable.filter(|paste| !paste.has_expired()) else {
            return Answer::Changed(false);
        };
        paste.expires = When::Past(now);
        Answer::Changed(true)
    }

    /// Deletes the row outside the fleet, if it is still in this state. Its reference stays
    /// counted.
    pub(crate) fn delete_row(&mut self, code: &str, found: Status) -> Answer {
        let unchanged = self.pastes.get(code).is_some_and(|paste| paste.status == found);
        if unchanged {
            self.pastes.remove(code);
        }
        Answer::Changed(unchanged)
    }

    /// Ends an open claim by hand, and leaves its rows alone.
    pub(crate) fn end_by_hand(&mut self, id: i64, finished: bool) -> Answer {
        let claim = self.claim_mut(id);
        let open = claim.is_open();
        if open {
            let lease = &mut claim.lease;
            (lease.finished, lease.reset, lease.expired) = (finished, !finished, false);
        }
        Answer::Changed(open)
    }

    /// Truncates the claims; their ids start again.
    pub(crate) fn truncate_claims(&mut self) -> Answer {
        self.claims.clear();
        for paste in self.pastes.values_mut() {
            if let Status::InProgress(Some(id)) = paste.status {
                paste.status = Status::UnknownClaim(id);
            }
        }
        Answer::Done
    }
}

fn put(outcome: &str, key: Option<&str>, dropped: bool) -> Answer {
    Answer::Put { outcome: outcome.into(), key: key.map(Into::into), dropped }
}
