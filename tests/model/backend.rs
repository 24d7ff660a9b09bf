//! A commit in flight: its client is gone, and the Postgres backend has not completed it yet. The
//! backend holds its locks until the commit lands or rolls back, and until then no other session
//! can see which. A step that needs one of these locks waits: it is not possible in that state. A
//! step that skips locked rows skips these.
//!
//! The model computes what the transaction writes only when it lands. The result is the same: the
//! rows that it depends on are locked until then.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{Memory, PASTES, Row, Set, State},
};

/// A backend that has lost its client inside a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Backend {
    /// The process whose UUID the claim carries; `None`: that process is dead.
    pub worker: Option<u8>,
    pub work: Work,
}

/// What is being committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Claim(Set),
    /// With the content whose pastes are failed, if any.
    Decrement(Memory, Option<u8>),
    /// With the paste that is failed, if any.
    Finish(Memory, Option<usize>),
}

impl Work {
    /// Returns the claim whose row is locked. The row of a new claim does not exist yet.
    pub(crate) fn claim_mut(&mut self) -> Option<&mut u8> {
        match self {
            Self::Claim(_) => None,
            Self::Decrement(memory, _) | Self::Finish(memory, _) => Some(&mut memory.claim),
        }
    }
}

impl State {
    fn work(&self) -> Option<Work> {
        self.backend.map(|backend| backend.work)
    }

    pub(crate) fn claim_is_locked(&self, slot: u8) -> bool {
        self.work().is_some_and(|mut work| work.claim_mut().is_some_and(|claim| *claim == slot))
    }

    /// A decrement in flight has locked this content row.
    pub(crate) fn is_being_decremented(&self, hash: u8) -> bool {
        match self.work() {
            Some(Work::Decrement(memory, except)) => {
                except != Some(hash) && memory.content_hashes.contains(&Some(hash))
            }
            _ => false,
        }
    }

    /// Returns the paste rows that the commit in flight changes or deletes.
    pub(crate) fn being_written(&self) -> Set {
        match self.work() {
            None => Set::default(),
            Some(Work::Claim(pastes)) => pastes,
            Some(Work::Decrement(memory, except)) => memory.referencing(except),
            Some(Work::Finish(memory, _)) => self.rows_of(memory.claim),
        }
    }

    fn rows_of(&self, claim: u8) -> Set {
        let marked = |row: Row| row.claim == Some(claim);
        let rows = (0..PASTES).filter(|paste| self.pastes[*paste].is_some_and(marked));
        rows.fold(Set::default(), Set::with)
    }

    /// Returns the rows that a claim in flight marks.
    pub(crate) fn being_claimed(&self) -> Set {
        match self.work() {
            Some(Work::Claim(pastes)) => pastes,
            _ => Set::default(),
        }
    }

    /// Lists the ways in which a worker's commit can now go unanswered.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = Commit> + Clone + use<> {
        let lost = self.budget.lost_answers;
        // One commit in flight at a time: two would make too many states.
        let slow = if self.backend.is_none() { self.budget.slow_commits } else { 0 };
        let all =
            [(Commit::AnswerLost, lost), (Commit::RolledBack, lost), (Commit::InFlight, slow)];
        all.into_iter().filter(|(_, budget)| *budget > 0).map(|(commit, _)| commit)
    }

    /// A claim in flight holds the advisory lock of this worker until its commit ends.
    pub(crate) fn turn_is_taken(&self, worker: usize) -> bool {
        self.backend.is_some_and(|backend| {
            matches!(backend.work, Work::Claim(_)) && backend.worker == Some(worker as u8)
        })
    }
}

impl Protocol {
    /// Postgres completes a commit in flight sooner or later, one way or the other.
    pub(crate) fn backend_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.backend.is_some() {
            actions.extend([Action::CommitLands, Action::CommitRollsBack]);
        }
    }

    /// The client loses its connection inside the commit.
    pub(crate) fn leave_in_flight(&self, state: &mut State, worker: usize, work: Work) {
        state.backend = Some(Backend { worker: Some(worker as u8), work });
    }

    /// The commit succeeds.
    pub(crate) fn commit_lands(&self, state: &mut State) {
        let Some(Backend { worker, work }) = state.backend.take() else {
            return;
        };
        match work {
            Work::Claim(pastes) => {
                self.mark(state, worker, pastes);
            }
            Work::Decrement(memory, except) => self.commit_decrement(state, &memory, except),
            Work::Finish(memory, except) => self.commit_finish(state, &memory, except),
        }
    }

    /// A read-back that does not wait would see the claim as it was before the commit.
    pub(crate) fn read_back_waits(&self, state: &State, memory: &Memory) -> bool {
        !self.has(Mistake::ReadsBackWithoutLock) && state.claim_is_locked(memory.claim)
    }
}
