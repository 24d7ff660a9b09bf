//! What the owners of the tables do: their transactions hold content rows, and their triggers let rows
//! neither be deleted nor be put back.

use super::{
    protocol::{Action, Commit, Protocol},
    state::{BODIES, Memory, PASTES, Phase, State, WORKERS, Worker},
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
                self.release_around_held(state, worker, memory, actions);
                self.finishes_leaving(state, worker, memory, actions);
            }
        }
    }

    pub fn hold(&self, state: &mut State, body: u8) {
        state.left.holds -= 1;
        state.held = Some(body);
    }

    /// A release that has waited long enough takes what it can lock.
    fn release_around_held(
        &self,
        state: &State,
        worker: usize,
        memory: &Memory,
        actions: &mut Vec<Action>,
    ) {
        let releases = matches!(memory.phase, Phase::Release { .. });
        let bodies = || memory.bodies.into_iter().flatten();
        let waits =
            state.claim_is_locked(memory.claim) || bodies().any(|body| state.body_is_locked(body));
        let held = state.held.filter(|held| bodies().any(|body| body == *held));
        if let (true, false, Some(held)) = (releases, waits, held) {
            actions.push(Action::ReleaseAround(worker, held, Commit::Heard));
        }
    }

    /// Rows that owe a key are taken out of the claim, or the finish is not possible.
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
        let stubborn = memory.pastes.iter().filter(|paste| !memory.bad.has(*paste)).filter(own);
        actions.extend(stubborn.map(|paste| Action::FinishLeaving(worker, paste)));
    }

    pub fn finish_leaving(&self, state: &mut State, worker: usize, paste: usize) {
        state.left.leftovers -= 1;
        let row = state.pastes[paste];
        self.finish(state, worker, None, Commit::Heard);
        if state.workers[worker] == Worker::Idle {
            state.pastes[paste] = row;
        }
    }

    /// Of a claim that can be reset now. A key goes to rows that can be changed, so an heir is not
    /// among the stubborn ones.
    pub fn resets_leaving(&self, state: &State, slot: u8, actions: &mut Vec<Action>) {
        let stubborn = |paste: &usize| {
            let own = state.pastes[*paste].is_some_and(|row| row.claim == Some(slot));
            own && state.claim(slot).heirs[*paste].is_none()
        };
        if state.left.leftovers > 0 {
            let stubborn = (0..PASTES).filter(stubborn);
            actions.extend(stubborn.map(|paste| Action::ResetLeaving(slot, paste)));
        }
    }

    pub fn reset_leaving(&self, state: &mut State, slot: u8, paste: usize) {
        state.left.leftovers -= 1;
        let row = state.pastes[paste];
        self.reset_silent(state, slot);
        state.pastes[paste] = row;
    }
}
