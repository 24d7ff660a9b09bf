//! The model: which steps are possible in a state, and what each one does.

use stateright::{Model, Property};

use super::{
    mistakes::Mistake,
    properties, rank,
    state::{Key, PASTES, Set, State},
};

/// The outcome of a commit, and whether its client got an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commit {
    /// Committed, and the client got the answer.
    Answered,
    /// Committed, but the answer was lost.
    AnswerLost,
    /// Rolled back, and that answer was lost.
    RolledBack,
    /// Not decided yet, and the connection is lost.
    InFlight,
}

/// The commits whose outcome is decided by the time that the answer is lost.
pub(crate) const LOST: [Commit; 2] = [Commit::AnswerLost, Commit::RolledBack];

/// One step of a process or of its environment. A paused process is one that takes no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Takes the Redis lock and, inside the claim's transaction, the locks on these rows.
    LockRows(usize, Set),
    Claim(usize, Commit),
    /// Releases the claims whose commit was not answered.
    ReleaseUnconfirmed(usize),
    /// Counts the references before the content rows are locked: a mistake.
    CountReferencesEarly(usize),
    Decrement(usize, Commit),
    /// A decrement that fails the pastes of this content.
    DecrementExcept(usize, u8, Commit),
    Delete(usize),
    /// Sends a delete whose answer does not come.
    DeleteLate(usize),
    /// S3 refuses the key.
    Refuse(usize),
    Finish(usize, Commit),
    /// A finish that fails this paste.
    FinishExcept(usize, usize, Commit),
    /// A finish that can neither delete nor reset this paste, which stays in progress.
    FinishStranding(usize, usize),
    ReadBack(usize),
    /// The read-back waits too long for a commit in flight, so the step is retried without it.
    ReadBackTimesOut(usize),
    /// The commit in flight succeeds.
    CommitLands,
    /// The commit in flight is rolled back.
    CommitRollsBack,
    /// The heartbeat finds that the claim was reset.
    LoseLease(usize),
    Release(usize),
    Crash(usize),
    LockVanishes,
    /// Reads the claim without a lock, for a reset that relies on it later: a mistake.
    ReadClaimEarly(u8),
    Reset(u8),
    /// A reset that cannot reset this paste, which stays in progress.
    ResetStranding(u8, usize),
    ResetStranded(usize),
    /// A transaction outside the fleet locks this content row.
    LockContent(u8),
    UnlockContent,
    /// A delete in flight is carried out.
    CarryOut(Key),
    /// A delete in flight is carried out, and will be carried out again.
    CarryOutAndRepeat(Key),
    Upload,
    Put(Commit),
    UploadAgain,
    Drop,
    Expire(usize),
    Extend(usize),
}

/// The protocol in one setting, perhaps with a mistake in it.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    pub start: State,
    /// The writer's puts, each a short code and its content, the last entry first.
    pub puts: &'static [(usize, u8)],
    /// The names of the examples that the check must find.
    pub examples: &'static [&'static str],
    pub mistake: Option<Mistake>,
}

impl Protocol {
    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Lists the steps that a healthy fleet and a healthy writer take sooner or later.
    pub(crate) fn fair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.worker_actions(state, actions);
        self.watchdog_actions(state, actions);
        self.writer_actions(state, actions);
        self.backend_actions(state, actions);
        self.owner_actions(state, actions);
        actions.extend(state.in_flight.iter().map(|key| Action::CarryOut(key as Key)));
    }

    /// Lists the steps that can happen, but need not.
    fn unfair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.worker_faults(state, actions);
        self.watchdog_faults(state, actions);
        self.writer_options(state, actions);
        self.owner_options(state, actions);
        if state.budget.repeated_deletes > 0 {
            actions.extend(state.in_flight.iter().map(|key| Action::CarryOutAndRepeat(key as Key)));
        }
        for paste in 0..PASTES {
            if state.pastes[paste].is_some_and(|row| !row.expired) {
                actions.push(Action::Expire(paste));
            }
        }
    }

    fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::LockRows(worker, pastes) => self.lock_rows(state, worker, pastes),
            Action::Claim(worker, commit) => self.claim(state, worker, commit),
            Action::ReleaseUnconfirmed(worker) => self.release_unconfirmed(state, worker),
            Action::CountReferencesEarly(worker) => self.count_references_early(state, worker),
            Action::Decrement(worker, commit) => self.decrement(state, worker, None, commit),
            Action::DecrementExcept(worker, hash, commit) => {
                self.decrement(state, worker, Some(hash), commit);
            }
            Action::Delete(worker) => self.delete(state, worker),
            Action::DeleteLate(worker) => self.delete_late(state, worker),
            Action::Refuse(worker) => self.refuse(state, worker),
            Action::Finish(worker, commit) => self.finish(state, worker, None, commit),
            Action::FinishExcept(worker, paste, commit) => {
                self.finish(state, worker, Some(paste), commit);
            }
            Action::FinishStranding(worker, paste) => self.finish_stranding(state, worker, paste),
            Action::ReadBack(worker) | Action::ReadBackTimesOut(worker) => {
                self.read_back(state, worker);
            }
            Action::CommitLands => self.commit_lands(state),
            Action::CommitRollsBack => state.backend = None,
            Action::LoseLease(worker) => self.lose_lease(state, worker),
            Action::Release(worker) => self.release(state, worker),
            Action::Crash(worker) => self.crash(state, worker),
            Action::LockVanishes => self.lock_vanishes(state),
            Action::ReadClaimEarly(slot) => state.watchdog = Some((slot, *state.claim(slot))),
            Action::Reset(slot) => self.reset_expired(state, slot),
            Action::ResetStranding(slot, paste) => self.reset_stranding(state, slot, paste),
            Action::ResetStranded(paste) => self.reset_stranded(state, paste),
            Action::LockContent(hash) => self.lock_content(state, hash),
            Action::UnlockContent => state.locked_content = None,
            Action::CarryOut(key) => self.carry_out(state, key),
            Action::CarryOutAndRepeat(key) => self.carry_out_and_repeat(state, key),
            Action::Upload => self.upload(state),
            Action::Put(commit) => self.put(state, commit),
            Action::UploadAgain => self.upload_again(state),
            Action::Drop => self.drop_uploads(state),
            Action::Expire(paste) => self.expire(state, paste),
            Action::Extend(paste) => self.extend(state, paste),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.fair_actions(state, actions);
        self.unfair_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = *last;
        self.take(&mut next, action);
        next.drop_closed_claims();
        if self.mistake.is_none() {
            rank::assert_progress(last, &next, action);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
