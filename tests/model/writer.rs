//! The paste service: uploads under a fresh key, then counts the reference by upsert in one
//! transaction, then drops what no row uses.
//!
//! A put is one step: it locks the content row before it counts. Where there is no content row to
//! lock yet, its upsert and a rival's meet at the primary key, and one of them comes first.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, LOST, Protocol},
    state::{Content, Key, PASTES, Row, Set, State, Writer},
};

impl Protocol {
    pub fn writer_actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.writer {
            Writer::Idle => {}
            Writer::Uploaded { .. } if self.put_waits(state) => {}
            Writer::Uploaded { .. } => actions.push(Action::Put(Commit::Heard)),
            Writer::Unsure(_) => actions.push(Action::UploadAgain),
            Writer::Dropping(_) => actions.push(Action::Drop),
        }
    }

    pub fn writer_whims(&self, state: &State, actions: &mut Vec<Action>) {
        if state.writer == Writer::Idle && state.left.puts > 0 {
            actions.push(Action::Upload);
        }
        let uploaded = matches!(state.writer, Writer::Uploaded { .. });
        if uploaded && state.left.lost_answers > 0 && !self.put_waits(state) {
            actions.extend(LOST.map(Action::Put));
        }
        if state.left.extensions > 0 {
            let extendable = |paste: &usize| self.is_extendable(state, *paste);
            actions.extend((0..PASTES).filter(extendable).map(Action::Extend));
        }
    }

    /// The primary key waits for a row that may go, and the upsert for the content row.
    fn put_waits(&self, state: &State) -> bool {
        let (paste, body) = self.order(state);
        match state.pastes[paste] {
            Some(_) => state.being_written().has(paste),
            None => state.content_is_locked(body),
        }
    }

    /// Only a NOT_EXPIRED row that holds its reference; a locked row is waited for, and then it is
    /// too late.
    fn is_extendable(&self, state: &State, paste: usize) -> bool {
        let careless = self.has(Mistake::ExtendsAnything);
        let whole = |row: Row| !row.in_progress && row.body.is_some() && !state.locked().has(paste);
        state.pastes[paste].is_some_and(|row| row.expired && (careless || whole(row)))
    }

    pub fn extend(&self, state: &mut State, paste: usize) {
        state.left.extensions -= 1;
        self.set_expired(state, paste, false);
    }

    /// Time passes, or the owner expires the paste now.
    pub fn expire(&self, state: &mut State, paste: usize) {
        self.set_expired(state, paste, true);
    }

    fn set_expired(&self, state: &mut State, paste: usize, expired: bool) {
        state.pastes[paste].as_mut().expect("the paste is there").expired = expired;
    }

    pub fn upload(&self, state: &mut State) {
        state.left.puts -= 1;
        let key = self.fresh_key(state);
        state.writer = Writer::Uploaded { key, before: Set::default() };
    }

    /// The short code and the body of the put that the writer is at.
    fn order(&self, state: &State) -> (usize, u8) {
        self.puts[usize::from(state.left.puts)]
    }

    /// The key of the next upload, and the body under it.
    fn fresh_key(&self, state: &mut State) -> Key {
        let mut key = state.next_key;
        if self.has(Mistake::ReusedKey) {
            // The first bodies have the keys of their own number.
            key = self.order(state).1;
        } else {
            state.next_key += 1;
        }
        state.bucket.insert(key.into());
        key
    }

    pub fn put(&self, state: &mut State, commit: Commit) {
        let Writer::Uploaded { key, before } = state.writer else {
            return;
        };
        if commit != Commit::RolledBack {
            self.store(state, key, before);
        }
        let uploads = before.with(key.into());
        if commit != Commit::Heard {
            state.left.lost_answers -= 1;
            state.writer = Writer::Unsure(uploads);
            return;
        }
        let used = state.content.iter().flatten().map(|content| content.s3_key);
        let unused = used.fold(uploads, |unused, key| unused.without(key.into()));
        state.writer = if unused.is_empty() { Writer::Idle } else { Writer::Dropping(unused) };
    }

    /// What `paste_put` does: counts only if the paste was really inserted.
    fn store(&self, state: &mut State, key: Key, before: Set) {
        let (paste, body) = self.order(state);
        if state.pastes[paste].is_some() {
            return;
        }
        // Under a key of an earlier try even a paste that has expired by now does harm: what the
        // content row says is wrong for everybody.
        let repeated = before.has(key.into());
        state.pastes[paste] = Some(Row { expired: repeated, ..Row::holding(body) });
        let content = &mut state.content[usize::from(body)];
        let ref_count = content.map_or(0, |content| content.ref_count) + 1;
        let s3_key = content.map_or(key, |content| content.s3_key);
        *content = Some(Content { s3_key, ref_count });
    }

    /// After an unknown outcome: the upload stays, and the whole put is made again under another
    /// key. With the old key it could bring a body back that was erased in between.
    pub fn upload_again(&self, state: &mut State) {
        let Writer::Unsure(before) = state.writer else {
            return;
        };
        state.writer = match self.mistake {
            Some(Mistake::DropsUnsure) => Writer::Dropping(before),
            Some(Mistake::PutsAgainUnderOldKey) => {
                let key = before.iter().last().expect("the put had a key") as Key;
                Writer::Uploaded { key, before }
            }
            _ => Writer::Uploaded { key: self.fresh_key(state), before },
        };
    }

    pub fn drop_uploads(&self, state: &mut State) {
        if let Writer::Dropping(keys) = state.writer {
            keys.iter().for_each(|key| state.bucket.remove(key));
        }
        state.writer = Writer::Idle;
    }
}
