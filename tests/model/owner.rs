//! What the owners of the tables do: their transactions hold content rows, and their triggers let rows
//! neither be deleted nor be put back.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{BODIES, Key, Memory, PASTES, Phase, Row, State, WORKERS, Worker},
};

impl Protocol {
    /// A transaction ends sooner or later.
    pub fn owner_actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.held.map(|_| Action::LetGo));
    }

    pub fn owner_whims(&self, state: &State, actions: &mut Vec<Action>) {
        if state.left.holds > 0 && state.held.is_none() {
            let there = |body: &u8| state.content[usize::from(*body)].is_some();
            let bodies = (0..BODIES as u8).filter(there);
            let free = bodies.filter(|body| !state.body_is_locked(*body));
            actions.extend(free.map(Action::Hold));
        }
        for worker in 0..WORKERS {
            if let Worker::Holding(memory) = &state.workers[worker] {
                self.decrement_around_held(state, worker, memory, actions);
                self.finishes_leaving(state, worker, memory, actions);
            }
        }
    }

    pub fn hold(&self, state: &mut State, body: u8) {
        state.left.holds -= 1;
        state.held = Some(body);
    }

    /// A decrement that has waited long enough takes what it can lock.
    fn decrement_around_held(
        &self,
        state: &State,
        worker: usize,
        memory: &Memory,
        actions: &mut Vec<Action>,
    ) {
        let decrements = matches!(memory.phase, Phase::Decrement { .. });
        let bodies = || memory.bodies.into_iter().flatten();
        let waits =
            state.claim_is_locked(memory.claim) || bodies().any(|body| state.body_is_locked(body));
        let held = state.held.filter(|held| bodies().any(|body| body == *held));
        if let (true, false, Some(held)) = (decrements, waits, held) {
            actions.push(Action::DecrementAround(worker, held, Commit::Heard));
        }
    }

    /// Any row of the batch, also one whose object S3 refused: then the claim keeps its key.
    fn finishes_leaving(
        &self,
        state: &State,
        worker: usize,
        memory: &Memory,
        actions: &mut Vec<Action>,
    ) {
        let waits = state.claim_is_locked(memory.claim);
        if state.left.leftovers == 0 || memory.phase != Phase::Finish || waits {
            return;
        }
        let own =
            |paste: &usize| state.pastes[*paste].is_some_and(|row| row.claim == Some(memory.claim));
        let blocked = memory.pastes.iter().filter(own);
        actions.extend(blocked.map(|paste| Action::FinishLeaving(worker, paste)));
    }

    pub fn finish_leaving(&self, state: &mut State, worker: usize, paste: usize) {
        state.left.leftovers -= 1;
        let row = state.pastes[paste];
        let Worker::Holding(memory) = state.workers[worker] else {
            return;
        };
        self.finish(state, worker, None, Commit::Heard);
        if state.workers[worker] == Worker::Idle {
            let key = memory.owes[paste].filter(|_| memory.bad.has(paste));
            self.leave(state, memory.claim, paste, row, key);
        }
    }

    /// The row stays in progress under a claim that is over, which keeps the key of its object.
    fn leave(&self, state: &mut State, slot: u8, paste: usize, row: Option<Row>, key: Option<Key>) {
        state.pastes[paste] = row;
        if !self.has(Mistake::ForgetsKeptKeys) {
            state.claim_mut(slot).pending_owners[paste] = key;
        }
    }

    /// Of a claim that can be reset now. Where no other row can take over its key, even an pending_owner may be
    /// blocked.
    pub fn resets_leaving(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let blocked =
            |paste: &usize| state.pastes[*paste].is_some_and(|row| row.claim == Some(slot));
        if state.left.leftovers > 0 {
            let blocked = (0..PASTES).filter(blocked);
            actions.extend(blocked.map(|paste| Action::ResetLeaving(slot, paste)));
        }
    }

    pub fn reset_leaving(&self, state: &mut State, slot: u8, paste: usize) {
        state.left.leftovers -= 1;
        let (row, key) = (state.pastes[paste], state.claim(slot).pending_owners[paste]);
        self.reset_expired(state, slot);
        self.leave(state, slot, paste, row, key);
    }
}
