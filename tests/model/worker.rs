//! The workers: lock, claim, and what may befall them at every step. Decrement and finish have files
//! of their own; step 4 is in `store.rs`. Eviction touches nothing that the properties speak of.
//!
//! The Redis lock keeps workers apart, and may vanish at any time: then two of them are inside
//! their claims at once, and only the locks of the rows are left.

use std::iter;

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{Claim, Doubt, End, Memory, PASTES, Phase, Set, State, Step, WORKERS, Worker},
};

impl Protocol {
    pub fn worker_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..WORKERS {
            match &state.workers[worker] {
                Worker::Idle if state.lock.is_none() && !state.turn_is_taken(worker) => {
                    self.picks(state, worker, actions);
                }
                Worker::Idle => {}
                Worker::Picking(_) => actions.push(Action::Claim(worker, Commit::Heard)),
                Worker::AskClaims if self.turn_waits(state, worker) => {}
                Worker::AskClaims => actions.push(Action::ReleaseUnconfirmed(worker)),
                Worker::Holding(memory) if self.must_wait(state, memory) => {}
                Worker::Holding(memory) => self.steps(worker, memory, actions),
            }
        }
        if state.lock_is_abandoned() {
            actions.push(Action::LockVanishes);
        }
    }

    /// Any batch of due rows that nobody has locked.
    fn picks(&self, state: &State, worker: usize, actions: &mut Vec<Action>) {
        let due = self.due(state);
        let batches = (1..=due.0).filter(|batch| batch & !due.0 == 0);
        actions.extend(batches.map(|batch| Action::Pick(worker, Set(batch))));
    }

    fn due(&self, state: &State) -> Set {
        let locked = if self.has(Mistake::TrustsTheLock) { Set::default() } else { state.locked() };
        let is_due = |paste: &usize| {
            let row = state.pastes[*paste];
            row.is_some_and(|row| row.expired && !row.in_progress) && !locked.has(*paste)
        };
        (0..PASTES).filter(is_due).fold(Set::default(), Set::with)
    }

    fn steps(&self, worker: usize, memory: &Memory, actions: &mut Vec<Action>) {
        actions.push(match memory.phase {
            Phase::Decrement { looked: None } if self.has(Mistake::OldSnapshot) => {
                Action::LookForHolders(worker)
            }
            Phase::Decrement { .. } => Action::Decrement(worker, Commit::Heard),
            Phase::Delete => Action::Delete(worker),
            Phase::Finish => Action::Finish(worker, Commit::Heard),
            Phase::Ask(..) => Action::ReadBack(worker),
        });
    }

    /// For a commit under way, or for rows that somebody else is about to claim: only a finish that
    /// is not fenced can meet those.
    fn must_wait(&self, state: &State, memory: &Memory) -> bool {
        let locked = state.claim_is_locked(memory.claim);
        match memory.phase {
            Phase::Decrement { .. } => {
                let mut bodies = memory.bodies.into_iter().flatten();
                locked || bodies.any(|body| state.content_is_locked(body))
            }
            Phase::Delete => false,
            Phase::Finish if self.has(Mistake::NoFenceInFinish) => {
                memory.pastes.iter().any(|paste| state.locked().has(paste))
            }
            Phase::Finish => locked,
            Phase::Ask(..) => self.look_waits(state, memory),
        }
    }

    fn turn_waits(&self, state: &State, worker: usize) -> bool {
        !self.has(Mistake::ReleasesUnconfirmedWithoutTurn) && state.turn_is_taken(worker)
    }

    pub fn worker_faults(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..WORKERS {
            match &state.workers[worker] {
                Worker::Idle => continue,
                Worker::Picking(_) => {
                    let lost = state.unanswered();
                    actions.extend(lost.map(|lost| Action::Claim(worker, lost)));
                }
                Worker::AskClaims => {}
                Worker::Holding(memory) => self.step_faults(state, worker, memory, actions),
            }
            if state.left.crashes > 0 {
                actions.push(Action::Crash(worker));
            }
        }
        if state.left.lost_locks > 0 && state.lock.is_some() && !state.lock_is_abandoned() {
            actions.push(Action::LockVanishes);
        }
    }

    fn step_faults(&self, state: &State, worker: usize, memory: &Memory, to: &mut Vec<Action>) {
        if self.must_wait(state, memory) {
            to.extend(matches!(memory.phase, Phase::Ask(..)).then_some(Action::LookInVain(worker)));
        } else {
            self.phase_faults(state, worker, memory, to);
        }
        if state.claim(memory.claim).end == Some(End::Reset) {
            to.push(Action::LoseClaim(worker));
        }
        if state.left.releases > 0 && !state.claim_is_locked(memory.claim) {
            to.push(Action::Release(worker));
        }
    }

    fn phase_faults(&self, state: &State, worker: usize, memory: &Memory, to: &mut Vec<Action>) {
        let (left, lost) = (&state.left, state.unanswered());
        let answers = || iter::once(Commit::Heard).chain(lost.clone());
        match memory.phase {
            Phase::Decrement { .. } => {
                to.extend(lost.clone().map(|lost| Action::Decrement(worker, lost)));
                let bad = memory.bodies.into_iter().flatten().filter(|_| left.row_faults > 0);
                let around =
                    |body| answers().map(move |it| Action::DecrementAround(worker, body, it));
                to.extend(bad.flat_map(around));
            }
            Phase::Delete => {
                to.extend((left.late_deletes > 0).then_some(Action::DeleteLate(worker)));
                to.extend((left.refusals > 0).then_some(Action::Refuse(worker)));
            }
            Phase::Finish => {
                to.extend(lost.clone().map(|lost| Action::Finish(worker, lost)));
                let bad = memory.pastes.iter().filter(|_| left.row_faults > 0);
                let around =
                    |paste| answers().map(move |it| Action::FinishAround(worker, paste, it));
                to.extend(bad.flat_map(around));
            }
            Phase::Ask(..) => {}
        }
    }

    pub fn pick(&self, state: &mut State, worker: usize, pastes: Set) {
        state.lock = Some(worker as u8);
        state.workers[worker] = Worker::Picking(pastes);
    }

    /// Marks the rows and inserts the claim, then lets go of the Redis lock if it is still there.
    pub fn claim(&self, state: &mut State, worker: usize, commit: Commit) {
        let Worker::Picking(pastes) = state.workers[worker] else {
            return;
        };
        state.left.spend(commit);
        state.lock = state.lock.filter(|holder| usize::from(*holder) != worker);
        state.workers[worker] = Worker::AskClaims;
        match commit {
            Commit::Heard | Commit::Unheard => {
                let memory = self.mark(state, Some(worker as u8), pastes);
                if commit == Commit::Heard {
                    state.workers[worker] = Worker::Holding(memory);
                }
            }
            Commit::RolledBack => {}
            Commit::UnderWay => self.leave_behind(state, worker, Work::Claim(pastes)),
        }
    }

    pub fn mark(&self, state: &mut State, worker: Option<u8>, pastes: Set) -> Memory {
        let slot = state.claims.iter().position(Option::is_none).expect("CLAIMS are enough");
        state.claims[slot] =
            Some(Claim { worker, decremented: false, pending_owners: [None; PASTES], end: None });
        let mut memory = Memory {
            claim: slot as u8,
            pastes,
            bodies: [None; PASTES],
            owes: [None; PASTES],
            bad: Set::default(),
            phase: Phase::Decrement { looked: None },
        };
        for paste in pastes.iter() {
            // With TrustsTheLock, somebody else may have claimed the row, or even finished it.
            let Some(row) = &mut state.pastes[paste] else {
                continue;
            };
            (row.in_progress, row.claim) = (true, Some(slot as u8));
            (memory.bodies[paste], memory.owes[paste]) = (row.body, row.pending_s3_key);
        }
        if self.has(Mistake::ObjectsFirst) {
            self.delete_too_early(state, &mut memory);
        }
        memory
    }

    /// Waits for the old backend, then releases the open claims of its own that it does not
    /// know. The look and the release are two transactions, but the second looks again.
    pub fn release_unconfirmed(&self, state: &mut State, worker: usize) {
        for slot in 0..state.claims.len() {
            let own = |claim: &Claim| claim.end.is_none() && claim.worker == Some(worker as u8);
            if let Some(claim) = state.claims[slot].filter(own) {
                self.reset(state, slot as u8, &claim);
            }
        }
        state.workers[worker] = Worker::Idle;
    }

    /// Goes on from what the claim row says.
    pub fn read_back(&self, state: &mut State, worker: usize) {
        let Worker::Holding(mut memory) = state.workers[worker] else {
            return;
        };
        let Phase::Ask(step, _) = memory.phase else {
            return;
        };
        let claim = *state.claim(memory.claim);
        state.workers[worker] = match (claim.end, step) {
            (Some(End::Reset), _) | (Some(End::Finished), Step::Finish) => Worker::Idle,
            (_, Step::Decrement) if claim.decremented => {
                Worker::Holding(self.decremented(memory, &claim.pending_owners))
            }
            (_, Step::Decrement) => {
                memory.phase = Phase::Decrement { looked: None };
                Worker::Holding(memory)
            }
            (_, Step::Finish) => {
                memory.phase = Phase::Finish;
                Worker::Holding(memory)
            }
        };
    }

    /// The fence matched nothing, or the answer was lost: the claim must be read back.
    pub fn ask(&self, state: &mut State, worker: usize, memory: Memory, step: Step, doubt: Doubt) {
        let lost = self.has(Mistake::ZeroRowsMeanLost) && doubt == Doubt::NotFenced;
        let asking = Worker::Holding(Memory { phase: Phase::Ask(step, doubt), ..memory });
        state.workers[worker] = if lost { Worker::Idle } else { asking };
    }

    pub fn lose_claim(&self, state: &mut State, worker: usize) {
        state.workers[worker] = Worker::Idle;
    }

    /// The dependencies fail, or the process is asked to stop. Its answer may be lost too: asked
    /// again, it finds nothing to release, so that is no step of its own.
    pub fn release(&self, state: &mut State, worker: usize) {
        state.left.releases -= 1;
        if let Worker::Holding(memory) = state.workers[worker] {
            let claim = *state.claim(memory.claim);
            if claim.end.is_none() {
                self.reset(state, memory.claim, &claim);
            }
        }
        state.workers[worker] = Worker::Idle;
    }

    /// The memory is gone and an open transaction is rolled back, unless it was being committed.
    /// The next process has a UUID of its own, so nobody but the watchdog comes for the claims that
    /// are left.
    pub fn crash(&self, state: &mut State, worker: usize) {
        state.left.crashes -= 1;
        state.workers[worker] = Worker::Idle;
        for claim in state.claims.iter_mut().flatten() {
            claim.worker = claim.worker.filter(|owner| usize::from(*owner) != worker);
        }
        if let Some(backend) = &mut state.backend {
            backend.worker = backend.worker.filter(|owner| usize::from(*owner) != worker);
        }
    }

    pub fn lock_vanishes(&self, state: &mut State) {
        if !state.lock_is_abandoned() {
            state.left.lost_locks -= 1;
        }
        state.lock = None;
    }
}
