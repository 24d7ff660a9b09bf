//! What the owner of the tables does: its transactions lock content rows, and its triggers let rows
//! be neither deleted nor reset.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{CONTENT_ROWS, Key, Memory, PASTES, Phase, Row, State, WORKERS, Worker},
};

impl Protocol {
    /// A transaction that locks a content row ends sooner or later.
    pub(crate) fn owner_actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.locked_content.map(|_| Action::UnlockContent));
    }

    /// The owner can lock a content row, and make a decrement defer rows or a finish strand one.
    pub(crate) fn owner_options(&self, state: &State, actions: &mut Vec<Action>) {
        if state.budget.content_locks > 0 && state.locked_content.is_none() {
            let exists = |hash: &u8| state.content[usize::from(*hash)].is_some();
            let hashes = (0..CONTENT_ROWS as u8).filter(exists);
            let free = hashes.filter(|hash| !state.is_being_decremented(*hash));
            actions.extend(free.map(Action::LockContent));
        }
        for worker in 0..WORKERS {
            if let Worker::InBatch(memory) = &state.workers[worker] {
                self.decrement_except_locked(state, worker, memory, actions);
                self.finishes_stranding(state, worker, memory, actions);
            }
        }
    }

    pub(crate) fn lock_content(&self, state: &mut State, hash: u8) {
        state.budget.content_locks -= 1;
        state.locked_content = Some(hash);
    }

    /// A decrement that has waited long enough proceeds with the content rows that it can lock.
    fn decrement_except_locked(
        &self,
        state: &State,
        worker: usize,
        memory: &Memory,
        actions: &mut Vec<Action>,
    ) {
        let decrements = matches!(memory.phase, Phase::Decrement { .. });
        let hashes = || memory.content_hashes.into_iter().flatten();
        let waits = state.claim_is_locked(memory.claim)
            || hashes().any(|hash| state.is_being_decremented(hash));
        let locked = state.locked_content.filter(|locked| hashes().any(|hash| hash == *locked));
        if let (true, false, Some(locked)) = (decrements, waits, locked) {
            actions.push(Action::DecrementExcept(worker, locked, Commit::Answered));
        }
    }

    /// A finish can strand any row of the batch. If S3 refused the row's object, the claim keeps
    /// its key.
    fn finishes_stranding(
        &self,
        state: &State,
        worker: usize,
        memory: &Memory,
        actions: &mut Vec<Action>,
    ) {
        let waits = state.claim_is_locked(memory.claim);
        if state.budget.stranded_rows == 0 || memory.phase != Phase::Finish || waits {
            return;
        }
        let own =
            |paste: &usize| state.pastes[*paste].is_some_and(|row| row.claim == Some(memory.claim));
        let blocked = memory.pastes.iter().filter(own);
        actions.extend(blocked.map(|paste| Action::FinishStranding(worker, paste)));
    }

    pub(crate) fn finish_stranding(&self, state: &mut State, worker: usize, paste: usize) {
        state.budget.stranded_rows -= 1;
        let row = state.pastes[paste];
        let Worker::InBatch(memory) = state.workers[worker] else {
            return;
        };
        self.finish(state, worker, None, Commit::Answered);
        if state.workers[worker] == Worker::Idle {
            let key = memory.pending[paste].filter(|_| memory.bad.has(paste));
            self.strand(state, memory.claim, paste, row, key);
        }
    }

    /// Leaves the row in progress under an ended claim, which keeps the key of the row's object.
    fn strand(
        &self,
        state: &mut State,
        slot: u8,
        paste: usize,
        row: Option<Row>,
        key: Option<Key>,
    ) {
        state.pastes[paste] = row;
        if !self.has(Mistake::DropsKeysOfStrandedRows) {
            state.claim_mut(slot).pending_owners[paste] = key;
        }
    }

    /// A reset can strand any row of its claim, even the owner of a pending key if no other row can
    /// take that over.
    pub(crate) fn resets_stranding(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let blocked =
            |paste: &usize| state.pastes[*paste].is_some_and(|row| row.claim == Some(slot));
        if state.budget.stranded_rows > 0 {
            let blocked = (0..PASTES).filter(blocked);
            actions.extend(blocked.map(|paste| Action::ResetStranding(slot, paste)));
        }
    }

    pub(crate) fn reset_stranding(&self, state: &mut State, slot: u8, paste: usize) {
        state.budget.stranded_rows -= 1;
        let (row, key) = (state.pastes[paste], state.claim(slot).pending_owners[paste]);
        self.reset_expired(state, slot);
        self.strand(state, slot, paste, row, key);
    }
}
