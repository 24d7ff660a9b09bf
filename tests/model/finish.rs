//! Step 6: the paste rows go, and the claim is closed. One transaction, which begins with the
//! claim row as the reset does, and so one step.

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Commit, Protocol},
    state::{Doubt, End, Memory, PASTES, State, Step, Worker},
};

impl Protocol {
    /// Around a paste that cannot be deleted: it is failed in the same transaction, and owes
    /// nothing.
    pub fn finish(&self, state: &mut State, worker: usize, around: Option<usize>, commit: Commit) {
        let Worker::Holding(memory) = state.workers[worker] else {
            return;
        };
        state.left.row_faults -= u8::from(around.is_some());
        state.left.spend(commit);
        if commit != Commit::RolledBack && !self.may_finish(state, &memory) {
            return self.ask(state, worker, memory, Step::Finish, Doubt::NotFenced);
        }
        match commit {
            Commit::Heard | Commit::Unheard => self.commit_finish(state, &memory, around),
            Commit::RolledBack => {}
            Commit::UnderWay => self.leave_behind(state, worker, Work::Finish(memory, around)),
        }
        match commit {
            Commit::Heard => state.workers[worker] = Worker::Idle,
            _ => self.ask(state, worker, memory, Step::Finish, Doubt::NoAnswer),
        }
    }

    /// The fence.
    fn may_finish(&self, state: &State, memory: &Memory) -> bool {
        let claim = state.claim(memory.claim);
        self.has(Mistake::NoFenceInFinish) || claim.end.is_none() && claim.decremented
    }

    /// Closes the claim.
    pub fn commit_finish(&self, state: &mut State, memory: &Memory, around: Option<usize>) {
        let claim = state.claim_mut(memory.claim);
        (claim.end, claim.pending_owners) = (Some(End::Finished), [None; PASTES]);
        self.remove_rows(state, memory, around);
    }

    fn remove_rows(&self, state: &mut State, memory: &Memory, around: Option<usize>) {
        for (paste, slot) in state.pastes.iter_mut().enumerate() {
            // Without the fence, the worker goes by the short codes that it remembers.
            let remembered = self.has(Mistake::NoFenceInFinish) && memory.pastes.has(paste);
            let Some(row) =
                slot.as_mut().filter(|row| remembered || row.claim == Some(memory.claim))
            else {
                continue;
            };
            let refused = memory.bad.has(paste);
            if refused || around == Some(paste) {
                row.let_go();
                (row.body, row.pending_s3_key) = (None, memory.owes[paste].filter(|_| refused));
            } else {
                *slot = None;
            }
        }
    }
}
