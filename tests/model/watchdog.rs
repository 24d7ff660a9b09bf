//! The watchdog, at its most aggressive: it can reset any open claim at any time.
//!
//! A reset is one step: its locking read takes the claim row, and every other write of that claim
//! begins with the same row. A reset skips a locked claim, so it never interleaves with such a
//! write.

use super::{
    mistakes::Mistake,
    protocol::{Action, Protocol},
    state::{Claim, End, PASTES, Row, State},
};

impl Protocol {
    /// The claims of dead workers, and stranded rows, are reset sooner or later.
    pub(crate) fn watchdog_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.has(Mistake::NoWatchdog) {
            return;
        }
        self.resets(state, actions, |claim| claim.worker.is_none());
        for paste in 0..PASTES {
            // A row whose content row is locked would stay as it is.
            let locked =
                |row: Row| row.content_hash.is_some_and(|hash| state.content_is_locked(hash));
            if state.pastes[paste].is_some_and(|row| state.is_stranded(&row) && !locked(row)) {
                actions.push(Action::ResetStranded(paste));
            }
        }
    }

    /// Claims whose worker is only paused can be reset as well.
    pub(crate) fn watchdog_faults(&self, state: &State, actions: &mut Vec<Action>) {
        if state.budget.lease_expiries > 0 {
            self.resets(state, actions, |claim| claim.worker.is_some());
        }
    }

    fn resets(&self, state: &State, actions: &mut Vec<Action>, of: impl Fn(&Claim) -> bool) {
        for (slot, claim) in (0..).zip(&state.claims) {
            let open = claim.is_some_and(|claim| claim.end.is_none() && of(&claim));
            if !open || state.claim_is_locked(slot) {
                continue;
            }
            let has_read = state.watchdog.is_some_and(|(read, _)| read == slot);
            if self.has(Mistake::StaleClaimRead) && !has_read {
                actions.push(Action::ReadClaimEarly(slot));
            } else {
                actions.push(Action::Reset(slot));
                self.resets_stranding(state, slot, actions);
            }
        }
    }

    pub(crate) fn reset_expired(&self, state: &mut State, slot: u8) {
        if state.claim(slot).worker.is_some() {
            state.budget.lease_expiries -= 1;
        }
        // What the locking read returned; with the mistake, what an earlier read returned.
        let read = state.watchdog.take().map_or(*state.claim(slot), |(_, read)| read);
        self.reset(state, slot, &read);
    }

    /// Resets all pastes of the claim to NOT_EXPIRED, with their pending object deletes, and ends
    /// the claim, which fences off its worker. A release does the same.
    pub(crate) fn reset(&self, state: &mut State, slot: u8, locked: &Claim) {
        for paste in 0..PASTES {
            let Some(mut row) = state.pastes[paste].filter(|row| row.claim == Some(slot)) else {
                continue;
            };
            if locked.decremented && !self.has(Mistake::NoMarker) {
                row.content_hash = None;
            }
            if !self.has(Mistake::ResetDropsPendingKeys) {
                row.pending_s3_key = locked.pending_owners[paste].or(row.pending_s3_key);
            }
            state.pastes[paste] = Some(self.reset_row(state, row));
        }
        let claim = state.claim_mut(slot);
        (claim.end, claim.pending_owners) = (Some(End::Reset), [None; PASTES]);
    }

    /// The trigger on `pastes`: a reset row keeps its reference only if its content still exists.
    /// While the content row is locked, the row stays in progress under no claim, with its
    /// reference.
    pub(crate) fn reset_row(&self, state: &State, mut row: Row) -> Row {
        row.mark_not_expired();
        let Some(hash) = row.content_hash else {
            return row;
        };
        row.in_progress = state.content_is_locked(hash);
        let gone = state.content[usize::from(hash)].is_none();
        if gone && !self.has(Mistake::ResetsWithoutContentCheck) {
            row.content_hash = None;
        }
        row
    }

    /// A stranded row does not regain a reference that its claim decremented; it takes over the key
    /// that the claim kept for it.
    pub(crate) fn reset_stranded(&self, state: &mut State, paste: usize) {
        let mut row = state.pastes[paste].expect("the row is in progress");
        let decremented = row.claim.is_some_and(|slot| state.claim(slot).decremented);
        if decremented && !self.has(Mistake::StrandedRowsKeepReferences) {
            row.content_hash = None;
        }
        if let Some(slot) = row.claim {
            row.pending_s3_key =
                state.claim_mut(slot).pending_owners[paste].take().or(row.pending_s3_key);
        }
        state.pastes[paste] = Some(self.reset_row(state, row));
    }
}
