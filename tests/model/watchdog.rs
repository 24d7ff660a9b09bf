//! The watchdog, of the strongest kind: it may reset any open claim at any time.
//!
//! A reset is one step: its locking read takes the claim row, and every other write of that claim
//! begins with the same row. It skips a claim that is locked, so it never comes in between.

use super::{
    mistakes::Mistake,
    protocol::{Action, Protocol},
    state::{Claim, End, PASTES, Row, State},
};

impl Protocol {
    /// Claims of dead workers, and rows that something else marked, are reset sooner or later.
    pub fn watchdog_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.has(Mistake::NoWatchdog) {
            return;
        }
        self.resets(state, actions, |claim| claim.worker.is_none());
        for paste in 0..PASTES {
            // One whose content is locked would stay as it is.
            let locked = |row: Row| row.body.is_some_and(|body| state.content_is_locked(body));
            if state.pastes[paste].is_some_and(|row| state.is_stray(&row) && !locked(row)) {
                actions.push(Action::ResetStranded(paste));
            }
        }
    }

    /// Claims whose worker is only paused.
    pub fn watchdog_faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.left.lease_expiries > 0 {
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
                self.resets_leaving(state, slot, actions);
            }
        }
    }

    pub fn reset_expired(&self, state: &mut State, slot: u8) {
        if state.claim(slot).worker.is_some() {
            state.left.lease_expiries -= 1;
        }
        // What the locking read returned; with the mistake, what an earlier look returned.
        let looked = state.watchdog.take().map_or(*state.claim(slot), |(_, looked)| looked);
        self.reset(state, slot, &looked);
    }

    /// All pastes of the claim go back to NOT_EXPIRED, with their debts; the claim is fenced off.
    /// Releasing is the same.
    pub fn reset(&self, state: &mut State, slot: u8, locked: &Claim) {
        for paste in 0..PASTES {
            let Some(mut row) = state.pastes[paste].filter(|row| row.claim == Some(slot)) else {
                continue;
            };
            if locked.decremented && !self.has(Mistake::NoMarker) {
                row.body = None;
            }
            if !self.has(Mistake::NoPendingOwners) {
                row.pending_s3_key = locked.pending_owners[paste].or(row.pending_s3_key);
            }
            state.pastes[paste] = Some(self.come_back(state, row));
        }
        let claim = state.claim_mut(slot);
        (claim.end, claim.pending_owners) = (Some(End::Reset), [None; PASTES]);
    }

    /// The trigger: a row comes back with its body, if that is still there. While others hold the
    /// content row, it stays in progress under no claim, and keeps its reference.
    pub fn come_back(&self, state: &State, mut row: Row) -> Row {
        row.let_go();
        let Some(body) = row.body else {
            return row;
        };
        row.in_progress = state.content_is_locked(body);
        let gone = state.content[usize::from(body)].is_none();
        if gone && !self.has(Mistake::ComesBackBlindly) {
            row.body = None;
        }
        row
    }

    /// What its claim has let go of, it does not hold again; a key that the claim kept for it goes along.
    pub fn reset_stranded(&self, state: &mut State, paste: usize) {
        let mut row = state.pastes[paste].expect("the row is in progress");
        let decremented = row.claim.is_some_and(|slot| state.claim(slot).decremented);
        if decremented && !self.has(Mistake::LeftoversKeepReferences) {
            row.body = None;
        }
        if let Some(slot) = row.claim {
            row.pending_s3_key =
                state.claim_mut(slot).pending_owners[paste].take().or(row.pending_s3_key);
        }
        state.pastes[paste] = Some(self.come_back(state, row));
    }
}
