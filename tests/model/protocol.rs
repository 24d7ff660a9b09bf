//! The model itself: which steps are possible in a state, and what each one does.

use stateright::{Model, Property};

use super::{
    mistakes::Mistake,
    properties, rank,
    state::{Key, PASTES, Set, State},
};

/// What became of a commit, and whether whoever sent it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    Heard,
    /// Committed, but the answer was lost.
    Unheard,
    /// Rolled back, and that answer was lost.
    RolledBack,
    /// Neither yet, and the connection is lost.
    UnderWay,
}

/// Those whose outcome is decided by the time that the answer is lost.
pub const LOST: [Commit; 2] = [Commit::Unheard, Commit::RolledBack];

/// One step of one process, or of the world. A paused process is one that takes no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Takes the Redis lock and, inside the claim's transaction, the locks of these rows.
    Pick(usize, Set),
    Claim(usize, Commit),
    /// After a claim whose answer was lost.
    ReleaseUnconfirmed(usize),
    /// Looks who else holds the bodies, before they are locked: a mistake.
    LookForHolders(usize),
    Decrement(usize, Commit),
    /// A decrement that fails the pastes of this body.
    DecrementAround(usize, u8, Commit),
    Delete(usize),
    /// Sends a delete whose answer does not come.
    DeleteLate(usize),
    /// S3 refuses the key.
    Refuse(usize),
    Finish(usize, Commit),
    /// A finish that fails this paste.
    FinishAround(usize, usize, Commit),
    /// A finish that can do nothing about this paste: it stays in progress.
    FinishLeaving(usize, usize),
    ReadBack(usize),
    /// The look waits too long for a commit under way: the step is tried again without it.
    LookInVain(usize),
    /// The commit under way is done.
    Land,
    /// It is rolled back.
    LandNot,
    /// The heartbeat says that the claim was reset.
    LoseClaim(usize),
    Release(usize),
    Crash(usize),
    LockVanishes,
    /// A look that the reset will go by later: a mistake.
    LookAtClaim(u8),
    Reset(u8),
    /// A reset that can do nothing about this paste.
    ResetLeaving(u8, usize),
    ResetStranded(usize),
    /// A transaction of others locks this body's content row.
    Hold(u8),
    LetGo,
    /// A delete that was under way is carried out.
    CarryOut(Key),
    /// The same, and it will be carried out again.
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
pub struct Protocol {
    pub start: State,
    /// What the writer stores, one after the other: the short code and its body. The last entry
    /// comes first.
    pub puts: &'static [(usize, u8)],
    /// The examples that the check must find.
    pub shows: &'static [&'static str],
    pub mistake: Option<Mistake>,
}

impl Protocol {
    pub fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Steps that a healthy fleet and a healthy writer take sooner or later.
    pub fn fair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.worker_actions(state, actions);
        self.watchdog_actions(state, actions);
        self.writer_actions(state, actions);
        self.backend_actions(state, actions);
        self.owner_actions(state, actions);
        actions.extend(state.under_way.iter().map(|key| Action::CarryOut(key as Key)));
    }

    /// What may happen, but need not.
    fn unfair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.worker_faults(state, actions);
        self.watchdog_faults(state, actions);
        self.writer_whims(state, actions);
        self.owner_whims(state, actions);
        if state.left.repeated_deletes > 0 {
            actions.extend(state.under_way.iter().map(|key| Action::CarryOutAndRepeat(key as Key)));
        }
        for paste in 0..PASTES {
            if state.pastes[paste].is_some_and(|row| !row.expired) {
                actions.push(Action::Expire(paste));
            }
        }
    }

    fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::Pick(worker, pastes) => self.pick(state, worker, pastes),
            Action::Claim(worker, commit) => self.claim(state, worker, commit),
            Action::ReleaseUnconfirmed(worker) => self.release_unconfirmed(state, worker),
            Action::LookForHolders(worker) => self.look_for_holders(state, worker),
            Action::Decrement(worker, commit) => self.decrement(state, worker, None, commit),
            Action::DecrementAround(worker, body, commit) => {
                self.decrement(state, worker, Some(body), commit);
            }
            Action::Delete(worker) => self.delete(state, worker),
            Action::DeleteLate(worker) => self.delete_late(state, worker),
            Action::Refuse(worker) => self.refuse(state, worker),
            Action::Finish(worker, commit) => self.finish(state, worker, None, commit),
            Action::FinishAround(worker, paste, commit) => {
                self.finish(state, worker, Some(paste), commit);
            }
            Action::FinishLeaving(worker, paste) => self.finish_leaving(state, worker, paste),
            Action::ReadBack(worker) | Action::LookInVain(worker) => self.read_back(state, worker),
            Action::Land => self.land(state),
            Action::LandNot => state.backend = None,
            Action::LoseClaim(worker) => self.lose_claim(state, worker),
            Action::Release(worker) => self.release(state, worker),
            Action::Crash(worker) => self.crash(state, worker),
            Action::LockVanishes => self.lock_vanishes(state),
            Action::LookAtClaim(slot) => state.watchdog = Some((slot, *state.claim(slot))),
            Action::Reset(slot) => self.reset_expired(state, slot),
            Action::ResetLeaving(slot, paste) => self.reset_leaving(state, slot, paste),
            Action::ResetStranded(paste) => self.reset_stranded(state, paste),
            Action::Hold(body) => self.hold(state, body),
            Action::LetGo => state.held = None,
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
        next.forget_history();
        if self.mistake.is_none() {
            rank::assert_progress(last, &next, action);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
