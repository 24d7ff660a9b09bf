//! The workers: lock, claim, and the faults of every step. Decrement and finish have files of their
//! own; step 4 is in `store.rs`. Eviction touches nothing that a property depends on.
//!
//! The Redis lock keeps workers apart and can vanish at any time. Then two workers are inside their
//! claims at once, and only the row locks separate them.

use std::iter;

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Action, Commit, Protocol},
    state::{Claim, Doubt, End, Memory, PASTES, Phase, Set, State, Step, WORKERS, Worker},
};

impl Protocol {
    pub(crate) fn worker_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..WORKERS {
            match &state.workers[worker] {
                Worker::Idle if state.lock.is_none() && !state.turn_is_taken(worker) => {
                    self.lockable_batches(state, worker, actions);
                }
                Worker::Idle => {}
                Worker::RowsLocked(_) => actions.push(Action::Claim(worker, Commit::Answered)),
                Worker::ClaimUnconfirmed if self.turn_waits(state, worker) => {}
                Worker::ClaimUnconfirmed => actions.push(Action::ReleaseUnconfirmed(worker)),
                Worker::InBatch(memory) if self.must_wait(state, memory) => {}
                Worker::InBatch(memory) => self.steps(worker, memory, actions),
            }
        }
        if state.lock_is_abandoned() {
            actions.push(Action::LockVanishes);
        }
    }

    /// Lists all batches of due rows that are not locked.
    fn lockable_batches(&self, state: &State, worker: usize, actions: &mut Vec<Action>) {
        let due = self.due(state);
        let batches = (1..=due.0).filter(|batch| batch & !due.0 == 0);
        actions.extend(batches.map(|batch| Action::LockRows(worker, Set(batch))));
    }

    fn due(&self, state: &State) -> Set {
        let locked =
            if self.has(Mistake::TrustsRedisLock) { Set::default() } else { state.locked() };
        let is_due = |paste: &usize| {
            let row = state.pastes[*paste];
            row.is_some_and(|row| row.expired && !row.in_progress) && !locked.has(*paste)
        };
        (0..PASTES).filter(is_due).fold(Set::default(), Set::with)
    }

    fn steps(&self, worker: usize, memory: &Memory, actions: &mut Vec<Action>) {
        actions.push(match memory.phase {
            Phase::Decrement { counted: None } if self.has(Mistake::StaleSnapshot) => {
                Action::CountReferencesEarly(worker)
            }
            Phase::Decrement { .. } => Action::Decrement(worker, Commit::Answered),
            Phase::Delete => Action::Delete(worker),
            Phase::Finish => Action::Finish(worker, Commit::Answered),
            Phase::ReadBack(..) => Action::ReadBack(worker),
        });
    }

    /// The step waits for a commit in flight, or for rows that another worker is about to claim,
    /// which only a finish without a fence can meet.
    fn must_wait(&self, state: &State, memory: &Memory) -> bool {
        let locked = state.claim_is_locked(memory.claim);
        match memory.phase {
            Phase::Decrement { .. } => {
                let mut hashes = memory.content_hashes.into_iter().flatten();
                locked || hashes.any(|hash| state.content_is_locked(hash))
            }
            Phase::Delete => false,
            Phase::Finish if self.has(Mistake::NoFenceInFinish) => {
                memory.pastes.iter().any(|paste| state.locked().has(paste))
            }
            Phase::Finish => locked,
            Phase::ReadBack(..) => self.read_back_waits(state, memory),
        }
    }

    fn turn_waits(&self, state: &State, worker: usize) -> bool {
        !self.has(Mistake::ReleasesUnconfirmedWithoutWaiting) && state.turn_is_taken(worker)
    }

    pub(crate) fn worker_faults(&self, state: &State, actions: &mut Vec<Action>) {
        for worker in 0..WORKERS {
            match &state.workers[worker] {
                Worker::Idle => continue,
                Worker::RowsLocked(_) => {
                    let lost = state.unanswered();
                    actions.extend(lost.map(|lost| Action::Claim(worker, lost)));
                }
                Worker::ClaimUnconfirmed => {}
                Worker::InBatch(memory) => self.step_faults(state, worker, memory, actions),
            }
            if state.budget.crashes > 0 {
                actions.push(Action::Crash(worker));
            }
        }
        if state.budget.lost_locks > 0 && state.lock.is_some() && !state.lock_is_abandoned() {
            actions.push(Action::LockVanishes);
        }
    }

    fn step_faults(&self, state: &State, worker: usize, memory: &Memory, to: &mut Vec<Action>) {
        if self.must_wait(state, memory) {
            to.extend(
                matches!(memory.phase, Phase::ReadBack(..))
                    .then_some(Action::ReadBackTimesOut(worker)),
            );
        } else {
            self.phase_faults(state, worker, memory, to);
        }
        if state.claim(memory.claim).end == Some(End::Reset) {
            to.push(Action::LoseLease(worker));
        }
        if state.budget.releases > 0 && !state.claim_is_locked(memory.claim) {
            to.push(Action::Release(worker));
        }
    }

    fn phase_faults(&self, state: &State, worker: usize, memory: &Memory, to: &mut Vec<Action>) {
        let (budget, lost) = (&state.budget, state.unanswered());
        let answers = || iter::once(Commit::Answered).chain(lost.clone());
        match memory.phase {
            Phase::Decrement { .. } => {
                to.extend(lost.clone().map(|lost| Action::Decrement(worker, lost)));
                let bad =
                    memory.content_hashes.into_iter().flatten().filter(|_| budget.row_errors > 0);
                let except =
                    |hash| answers().map(move |it| Action::DecrementExcept(worker, hash, it));
                to.extend(bad.flat_map(except));
            }
            Phase::Delete => {
                to.extend((budget.late_deletes > 0).then_some(Action::DeleteLate(worker)));
                to.extend((budget.refusals > 0).then_some(Action::Refuse(worker)));
            }
            Phase::Finish => {
                to.extend(lost.clone().map(|lost| Action::Finish(worker, lost)));
                let bad = memory.pastes.iter().filter(|_| budget.row_errors > 0);
                let except =
                    |paste| answers().map(move |it| Action::FinishExcept(worker, paste, it));
                to.extend(bad.flat_map(except));
            }
            Phase::ReadBack(..) => {}
        }
    }

    pub(crate) fn lock_rows(&self, state: &mut State, worker: usize, pastes: Set) {
        state.lock = Some(worker as u8);
        state.workers[worker] = Worker::RowsLocked(pastes);
    }

    /// Marks the rows and inserts the claim, then releases the Redis lock if this worker still has
    /// it.
    pub(crate) fn claim(&self, state: &mut State, worker: usize, commit: Commit) {
        let Worker::RowsLocked(pastes) = state.workers[worker] else {
            return;
        };
        state.budget.spend(commit);
        state.lock = state.lock.filter(|holder| usize::from(*holder) != worker);
        state.workers[worker] = Worker::ClaimUnconfirmed;
        match commit {
            Commit::Answered | Commit::AnswerLost => {
                let memory = self.mark(state, Some(worker as u8), pastes);
                if commit == Commit::Answered {
                    state.workers[worker] = Worker::InBatch(memory);
                }
            }
            Commit::RolledBack => {}
            Commit::InFlight => self.leave_in_flight(state, worker, Work::Claim(pastes)),
        }
    }

    pub(crate) fn mark(&self, state: &mut State, worker: Option<u8>, pastes: Set) -> Memory {
        let slot = state.claims.iter().position(Option::is_none).expect("CLAIMS are enough");
        state.claims[slot] =
            Some(Claim { worker, decremented: false, pending_owners: [None; PASTES], end: None });
        let mut memory = Memory {
            claim: slot as u8,
            pastes,
            content_hashes: [None; PASTES],
            pending: [None; PASTES],
            bad: Set::default(),
            phase: Phase::Decrement { counted: None },
        };
        for paste in pastes.iter() {
            // With TrustsRedisLock, another worker may have claimed the row, or even finished it.
            let Some(row) = &mut state.pastes[paste] else {
                continue;
            };
            (row.in_progress, row.claim) = (true, Some(slot as u8));
            (memory.content_hashes[paste], memory.pending[paste]) =
                (row.content_hash, row.pending_s3_key);
        }
        if self.has(Mistake::ObjectsFirst) {
            self.delete_too_early(state, &mut memory);
        }
        memory
    }

    /// Waits for the old backend, then releases the worker's open claims that it does not know
    /// about. The search and the release are two transactions, but the second checks again.
    pub(crate) fn release_unconfirmed(&self, state: &mut State, worker: usize) {
        for slot in 0..state.claims.len() {
            let own = |claim: &Claim| claim.end.is_none() && claim.worker == Some(worker as u8);
            if let Some(claim) = state.claims[slot].filter(own) {
                self.reset(state, slot as u8, &claim);
            }
        }
        state.workers[worker] = Worker::Idle;
    }

    /// Continues from what the claim row says.
    pub(crate) fn read_back(&self, state: &mut State, worker: usize) {
        let Worker::InBatch(mut memory) = state.workers[worker] else {
            return;
        };
        let Phase::ReadBack(step, _) = memory.phase else {
            return;
        };
        let claim = *state.claim(memory.claim);
        state.workers[worker] = match (claim.end, step) {
            (Some(End::Reset), _) | (Some(End::Finished), Step::Finish) => Worker::Idle,
            (_, Step::Decrement) if claim.decremented => {
                Worker::InBatch(self.decremented(memory, &claim.pending_owners))
            }
            (_, Step::Decrement) => {
                memory.phase = Phase::Decrement { counted: None };
                Worker::InBatch(memory)
            }
            (_, Step::Finish) => {
                memory.phase = Phase::Finish;
                Worker::InBatch(memory)
            }
        };
    }

    /// The fence matched nothing, or the answer was lost: the claim must be read back.
    pub(crate) fn must_read_back(
        &self,
        state: &mut State,
        worker: usize,
        memory: Memory,
        step: Step,
        doubt: Doubt,
    ) {
        let lost = self.has(Mistake::ZeroRowsMeanLost) && doubt == Doubt::NotFenced;
        let read_back = Worker::InBatch(Memory { phase: Phase::ReadBack(step, doubt), ..memory });
        state.workers[worker] = if lost { Worker::Idle } else { read_back };
    }

    pub(crate) fn lose_lease(&self, state: &mut State, worker: usize) {
        state.workers[worker] = Worker::Idle;
    }

    /// A dependency fails, or the process gets a signal to stop. The answer of the release can be
    /// lost as well: the repeated release finds nothing to do, so this needs no step of its own.
    pub(crate) fn release(&self, state: &mut State, worker: usize) {
        state.budget.releases -= 1;
        if let Worker::InBatch(memory) = state.workers[worker] {
            let claim = *state.claim(memory.claim);
            if claim.end.is_none() {
                self.reset(state, memory.claim, &claim);
            }
        }
        state.workers[worker] = Worker::Idle;
    }

    /// The memory is lost and an open transaction is rolled back, unless it was being committed.
    /// The next process has a new UUID, so only the watchdog resets the claims that are left.
    pub(crate) fn crash(&self, state: &mut State, worker: usize) {
        state.budget.crashes -= 1;
        state.workers[worker] = Worker::Idle;
        for claim in state.claims.iter_mut().flatten() {
            claim.worker = claim.worker.filter(|owner| usize::from(*owner) != worker);
        }
        if let Some(backend) = &mut state.backend {
            backend.worker = backend.worker.filter(|owner| usize::from(*owner) != worker);
        }
    }

    pub(crate) fn lock_vanishes(&self, state: &mut State) {
        if !state.lock_is_abandoned() {
            state.budget.lost_locks -= 1;
        }
        state.lock = None;
    }
}
