//! The watchdog, of the strongest kind: it may reset any open claim at any time.
//!
//! A reset is one step: its locking read takes the claim row, and every other write of that claim
//! begins with the same row. It skips a claim that is locked, so it never comes in between.

use super::{
    mistakes::Mistake,
    protocol::{Action, Protocol},
    state::{Claim, End, PASTES, State},
};

impl Protocol {
    /// Claims of dead workers, and rows that something else marked, are reset sooner or later.
    pub fn watchdog_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.has(Mistake::NoWatchdog) {
            return;
        }
        self.resets(state, actions, |claim| claim.worker.is_none());
        for paste in 0..PASTES {
            if state.pastes[paste].is_some_and(|row| row.in_progress && row.claim.is_none()) {
                actions.push(Action::ResetOrphan(paste));
            }
        }
    }

    /// Claims whose worker is only paused.
    pub fn watchdog_faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.left.silences > 0 {
            self.resets(state, actions, |claim| claim.worker.is_some());
        }
    }

    fn resets(&self, state: &State, actions: &mut Vec<Action>, of: impl Fn(&Claim) -> bool) {
        for (slot, claim) in (0..).zip(&state.claims) {
            let open = claim.is_some_and(|claim| claim.end.is_none() && of(&claim));
            if !open || state.claim_is_locked(slot) {
                continue;
            }
            let looked = state.watchdog.is_some_and(|(looked, _)| looked == slot);
            if self.has(Mistake::OldLookAtClaim) && !looked {
                actions.push(Action::LookAtClaim(slot));
            } else {
                actions.push(Action::Reset(slot));
            }
        }
    }

    pub fn reset_silent(&self, state: &mut State, slot: u8) {
        if state.claim(slot).worker.is_some() {
            state.left.silences -= 1;
        }
        // What the locking read returned; with the mistake, what an earlier look returned.
        let looked = state.watchdog.take().map_or(*state.claim(slot), |(_, looked)| looked);
        self.reset(state, slot, &looked);
    }

    /// All pastes of the claim go back to NOT_EXPIRED, with their debts; the claim is fenced off.
    /// Giving back is the same.
    pub fn reset(&self, state: &mut State, slot: u8, locked: &Claim) {
        for (paste, row) in state.pastes.iter_mut().enumerate() {
            let Some(row) = row.as_mut().filter(|row| row.claim == Some(slot)) else {
                continue;
            };
            row.let_go();
            if locked.released && !self.has(Mistake::NoMarker) {
                row.body = None;
            }
            // The trigger: a row comes back with its body, if that is still there.
            let gone = |body: &u8| state.content[usize::from(*body)].is_none();
            if row.body.as_ref().is_some_and(gone) && !self.has(Mistake::ComesBackBlindly) {
                row.body = None;
            }
            if !self.has(Mistake::NoHeirs) {
                row.doomed_key = locked.heirs[paste].or(row.doomed_key);
            }
        }
        let claim = state.claim_mut(slot);
        (claim.end, claim.heirs) = (Some(End::Reset), [None; PASTES]);
    }

    pub fn reset_orphan(&self, state: &mut State, paste: usize) {
        state.pastes[paste].as_mut().expect("the row is in progress").let_go();
    }
}
