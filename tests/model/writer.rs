//! The paste service: uploads under a fresh key, then counts the reference by upsert in one
//! transaction, then deletes uploads that no row uses.
//!
//! A put is one step: it locks the content row before it counts. If there is no content row yet,
//! concurrent upserts are serialized by the primary key.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, LOST, Protocol},
    state::{Content, Key, PASTES, Row, Set, State, Writer},
};

impl Protocol {
    pub(crate) fn writer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.writer {
            Writer::Idle => {}
            Writer::Uploaded { .. } if self.put_waits(state) => {}
            Writer::Uploaded { .. } => actions.push(Action::Put(Commit::Answered)),
            Writer::InDoubt(_) => actions.push(Action::UploadAgain),
            Writer::Dropping(_) => actions.push(Action::Drop),
        }
    }

    /// The writer can start a put, lose its answer, or extend a paste.
    pub(crate) fn writer_options(&self, state: &State, actions: &mut Vec<Action>) {
        if state.writer == Writer::Idle && state.budget.puts > 0 {
            actions.push(Action::Upload);
        }
        let uploaded = matches!(state.writer, Writer::Uploaded { .. });
        if uploaded && state.budget.lost_answers > 0 && !self.put_waits(state) {
            actions.extend(LOST.map(Action::Put));
        }
        if state.budget.extensions > 0 {
            let extendable = |paste: &usize| self.is_extendable(state, *paste);
            actions.extend((0..PASTES).filter(extendable).map(Action::Extend));
        }
    }

    /// The primary key waits for a row that may be deleted, and the upsert for the content row.
    fn put_waits(&self, state: &State) -> bool {
        let (paste, hash) = self.current_put(state);
        match state.pastes[paste] {
            Some(_) => state.being_written().has(paste),
            None => state.content_is_locked(hash),
        }
    }

    /// Only a NOT_EXPIRED row with its reference can be extended. An extension waits for a locked
    /// row, and then it is too late.
    fn is_extendable(&self, state: &State, paste: usize) -> bool {
        let unchecked = self.has(Mistake::ExtendsAnything);
        let whole =
            |row: Row| !row.in_progress && row.content_hash.is_some() && !state.locked().has(paste);
        state.pastes[paste].is_some_and(|row| row.expired && (unchecked || whole(row)))
    }

    pub(crate) fn extend(&self, state: &mut State, paste: usize) {
        state.budget.extensions -= 1;
        self.set_expired(state, paste, false);
    }

    /// The paste expires, by time or by `paste_expire_now`.
    pub(crate) fn expire(&self, state: &mut State, paste: usize) {
        self.set_expired(state, paste, true);
    }

    fn set_expired(&self, state: &mut State, paste: usize, expired: bool) {
        state.pastes[paste].as_mut().expect("the paste is there").expired = expired;
    }

    pub(crate) fn upload(&self, state: &mut State) {
        state.budget.puts -= 1;
        let key = self.fresh_key(state);
        state.writer = Writer::Uploaded { key, before: Set::default() };
    }

    /// Returns the short code and the content of the writer's current put.
    fn current_put(&self, state: &State) -> (usize, u8) {
        self.puts[usize::from(state.budget.puts)]
    }

    /// Uploads under the next key and returns that key.
    fn fresh_key(&self, state: &mut State) -> Key {
        let mut key = state.next_key;
        if self.has(Mistake::ReusedKey) {
            // The content rows of the start have keys of their own number.
            key = self.current_put(state).1;
        } else {
            state.next_key += 1;
        }
        state.bucket.insert(key.into());
        key
    }

    pub(crate) fn put(&self, state: &mut State, commit: Commit) {
        let Writer::Uploaded { key, before } = state.writer else {
            return;
        };
        if commit != Commit::RolledBack {
            self.store(state, key, before);
        }
        let uploads = before.with(key.into());
        if commit != Commit::Answered {
            state.budget.lost_answers -= 1;
            state.writer = Writer::InDoubt(uploads);
            return;
        }
        let used = state.content.iter().flatten().map(|content| content.s3_key);
        let unused = used.fold(uploads, |unused, key| unused.without(key.into()));
        state.writer = if unused.is_empty() { Writer::Idle } else { Writer::Dropping(unused) };
    }

    /// Does what `paste_put` does: counts only if the paste was really inserted.
    fn store(&self, state: &mut State, key: Key, before: Set) {
        let (paste, hash) = self.current_put(state);
        if state.pastes[paste].is_some() {
            return;
        }
        // Under the key of an earlier attempt even a paste that has expired by now does harm: its
        // content row names a missing object for every paste that shares it.
        let repeated = before.has(key.into());
        state.pastes[paste] = Some(Row { expired: repeated, ..Row::live(hash) });
        let content = &mut state.content[usize::from(hash)];
        let ref_count = content.map_or(0, |content| content.ref_count) + 1;
        let s3_key = content.map_or(key, |content| content.s3_key);
        *content = Some(Content { s3_key, ref_count });
    }

    /// After an unknown outcome the upload stays, and the whole put is repeated under another key.
    /// With the old key it could store a content row whose object was deleted in between.
    pub(crate) fn upload_again(&self, state: &mut State) {
        let Writer::InDoubt(before) = state.writer else {
            return;
        };
        state.writer = match self.mistake {
            Some(Mistake::DropsUploadInDoubt) => Writer::Dropping(before),
            Some(Mistake::RepeatsPutUnderOldKey) => {
                let key = before.iter().last().expect("the put had a key") as Key;
                Writer::Uploaded { key, before }
            }
            _ => Writer::Uploaded { key: self.fresh_key(state), before },
        };
    }

    pub(crate) fn drop_uploads(&self, state: &mut State) {
        if let Writer::Dropping(keys) = state.writer {
            keys.iter().for_each(|key| state.bucket.remove(key));
        }
        state.writer = Writer::Idle;
    }
}
