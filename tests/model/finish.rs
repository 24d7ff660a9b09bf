//! Step 6: the paste rows go, and the claim is closed. One transaction, which begins with the
//! claim row as the reset does, and so one step.

use super::{
    mistakes::Mistake,
    protocol::{Commit, Protocol},
    state::{Doubt, End, Memory, PASTES, State, Step, Worker},
};

impl Protocol {
    pub fn finish(&self, state: &mut State, worker: usize, commit: Commit) {
        let Worker::Holding(memory) = state.workers[worker] else {
            return;
        };
        state.left.lost_answers -= u8::from(commit != Commit::Heard);
        if commit != Commit::RolledBack {
            if !self.may_finish(state, &memory) {
                return Self::ask(state, worker, memory, Step::Finish, Doubt::NotFenced);
            }
            self.remove_rows(state, &memory, None);
        }
        match commit {
            Commit::Heard => state.workers[worker] = Worker::Idle,
            _ => Self::ask(state, worker, memory, Step::Finish, Doubt::NoAnswer),
        }
    }

    /// This paste cannot be deleted: it is detached in the same transaction, and owes nothing.
    pub fn finish_around(&self, state: &mut State, worker: usize, paste: usize) {
        let Worker::Holding(memory) = state.workers[worker] else {
            return;
        };
        state.left.row_faults -= 1;
        if !self.may_finish(state, &memory) {
            return Self::ask(state, worker, memory, Step::Finish, Doubt::NotFenced);
        }
        self.remove_rows(state, &memory, Some(paste));
        state.workers[worker] = Worker::Idle;
    }

    /// The fence, which closes the claim.
    fn may_finish(&self, state: &mut State, memory: &Memory) -> bool {
        let claim = state.claim_mut(memory.claim);
        if !self.has(Mistake::NoFenceInFinish) && (claim.end.is_some() || !claim.released) {
            return false;
        }
        (claim.end, claim.heirs) = (Some(End::Finished), [None; PASTES]);
        true
    }

    fn remove_rows(&self, state: &mut State, memory: &Memory, stubborn: Option<usize>) {
        for (paste, slot) in state.pastes.iter_mut().enumerate() {
            // Without the fence, the worker goes by the short codes that it remembers.
            let remembered = self.has(Mistake::NoFenceInFinish) && memory.pastes.has(paste);
            let Some(row) =
                slot.as_mut().filter(|row| remembered || row.claim == Some(memory.claim))
            else {
                continue;
            };
            let refused = memory.bad.has(paste);
            if refused || stubborn == Some(paste) {
                row.let_go();
                (row.body, row.doomed_key) = (None, memory.owes[paste].filter(|_| refused));
            } else {
                *slot = None;
            }
        }
    }
}
