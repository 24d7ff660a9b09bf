//! Step 6, finish: deletes the paste rows and closes the claim. It is one transaction that locks
//! the claim row first, as the reset does, and therefore one step of the model.

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Commit, Protocol},
    state::{Doubt, End, Memory, PASTES, State, Step, Worker},
};

impl Protocol {
    /// Finishes the batch. `except` is a paste that cannot be deleted: it is failed in the same
    /// transaction, without a pending object delete.
    pub(crate) fn finish(
        &self,
        state: &mut State,
        worker: usize,
        except: Option<usize>,
        commit: Commit,
    ) {
        let Worker::InBatch(memory) = state.workers[worker] else {
            return;
        };
        state.budget.row_errors -= u8::from(except.is_some());
        state.budget.spend(commit);
        if commit != Commit::RolledBack && !self.may_finish(state, &memory) {
            return self.must_read_back(state, worker, memory, Step::Finish, Doubt::NotFenced);
        }
        match commit {
            Commit::Answered | Commit::AnswerLost => self.commit_finish(state, &memory, except),
            Commit::RolledBack => {}
            Commit::InFlight => self.leave_in_flight(state, worker, Work::Finish(memory, except)),
        }
        match commit {
            Commit::Answered => state.workers[worker] = Worker::Idle,
            _ => self.must_read_back(state, worker, memory, Step::Finish, Doubt::NoAnswer),
        }
    }

    /// The fence: the claim is open and decremented.
    fn may_finish(&self, state: &State, memory: &Memory) -> bool {
        let claim = state.claim(memory.claim);
        self.has(Mistake::NoFenceInFinish) || claim.end.is_none() && claim.decremented
    }

    /// Closes the claim.
    pub(crate) fn commit_finish(&self, state: &mut State, memory: &Memory, except: Option<usize>) {
        let claim = state.claim_mut(memory.claim);
        (claim.end, claim.pending_owners) = (Some(End::Finished), [None; PASTES]);
        self.remove_rows(state, memory, except);
    }

    fn remove_rows(&self, state: &mut State, memory: &Memory, except: Option<usize>) {
        for (paste, slot) in state.pastes.iter_mut().enumerate() {
            // Without the fence, the worker deletes the short codes that it remembers.
            let remembered = self.has(Mistake::NoFenceInFinish) && memory.pastes.has(paste);
            let Some(row) =
                slot.as_mut().filter(|row| remembered || row.claim == Some(memory.claim))
            else {
                continue;
            };
            let refused = memory.bad.has(paste);
            if refused || except == Some(paste) {
                row.mark_not_expired();
                (row.content_hash, row.pending_s3_key) =
                    (None, memory.pending[paste].filter(|_| refused));
            } else {
                *slot = None;
            }
        }
    }
}
