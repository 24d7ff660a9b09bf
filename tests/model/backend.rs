//! A commit that is still under way: its client is gone, and the backend has not come to its end.
//! It holds its locks until it lands, as committed or as rolled back, and until then nobody can see
//! which. Whoever needs one of its locks waits: that step is not possible. Who skips locked rows
//! passes them by.
//!
//! What it writes is worked out when it lands. That makes no difference: what it went by is locked.

use super::{
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{Memory, PASTES, Row, Set, State},
};

/// A backend that has lost its client inside a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backend {
    /// The process whose UUID the claim carries; `None`: that process is no more.
    pub worker: Option<u8>,
    pub work: Work,
}

/// What is being committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Claim(Set),
    /// Perhaps around a body.
    Decrement(Memory, Option<u8>),
    /// Perhaps around a paste.
    Finish(Memory, Option<usize>),
}

impl Work {
    /// The claim whose row is locked. The row of a new claim is not there yet.
    pub fn claim_mut(&mut self) -> Option<&mut u8> {
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

    pub fn claim_is_locked(&self, slot: u8) -> bool {
        self.work().is_some_and(|mut work| work.claim_mut().is_some_and(|claim| *claim == slot))
    }

    /// The content rows of a decrement.
    pub fn body_is_locked(&self, body: u8) -> bool {
        match self.work() {
            Some(Work::Decrement(memory, around)) => {
                around != Some(body) && memory.bodies.contains(&Some(body))
            }
            _ => false,
        }
    }

    /// Paste rows that are being changed or deleted.
    pub fn being_written(&self) -> Set {
        match self.work() {
            None => Set::default(),
            Some(Work::Claim(pastes)) => pastes,
            Some(Work::Decrement(memory, around)) => memory.holding(around),
            Some(Work::Finish(memory, _)) => self.rows_of(memory.claim),
        }
    }

    fn rows_of(&self, claim: u8) -> Set {
        let marked = |row: Row| row.claim == Some(claim);
        let rows = (0..PASTES).filter(|paste| self.pastes[*paste].is_some_and(marked));
        rows.fold(Set::default(), Set::with)
    }

    /// Rows that a claim under way marks.
    pub fn being_claimed(&self) -> Set {
        match self.work() {
            Some(Work::Claim(pastes)) => pastes,
            _ => Set::default(),
        }
    }

    /// The ways in which a worker's commit may get no answer now.
    pub fn unanswered(&self) -> impl Iterator<Item = Commit> + Clone + use<> {
        let lost = self.left.lost_answers;
        // One at a time: two of them at once would be too many states.
        let slow = if self.backend.is_none() { self.left.slow_commits } else { 0 };
        let all = [(Commit::Unheard, lost), (Commit::RolledBack, lost), (Commit::UnderWay, slow)];
        all.into_iter().filter(|(_, left)| *left > 0).map(|(commit, _)| commit)
    }

    /// The lock in this worker's name that a claim holds until it is committed.
    pub fn turn_is_taken(&self, worker: usize) -> bool {
        self.backend.is_some_and(|backend| {
            matches!(backend.work, Work::Claim(_)) && backend.worker == Some(worker as u8)
        })
    }
}

impl Protocol {
    /// Postgres comes to an end with it, sooner or later, one way or the other.
    pub fn backend_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.backend.is_some() {
            actions.extend([Action::Land, Action::LandNot]);
        }
    }

    /// The client is gone.
    pub fn leave_behind(&self, state: &mut State, worker: usize, work: Work) {
        state.backend = Some(Backend { worker: Some(worker as u8), work });
    }

    /// Committed.
    pub fn land(&self, state: &mut State) {
        let Some(Backend { worker, work }) = state.backend.take() else {
            return;
        };
        match work {
            Work::Claim(pastes) => {
                self.mark(state, worker, pastes);
            }
            Work::Decrement(memory, around) => self.commit_decrement(state, &memory, around),
            Work::Finish(memory, around) => self.commit_finish(state, &memory, around),
        }
    }

    /// A look that does not wait sees the claim as it was before the commit.
    pub fn look_waits(&self, state: &State, memory: &Memory) -> bool {
        !self.has(Mistake::ReadsBackWithoutLock) && state.claim_is_locked(memory.claim)
    }
}
