//! S3: a delete takes effect when it is carried out, which can be late, twice, or long after its
//! sender is dead. Deleting an object that does not exist succeeds.

use super::{
    mistakes::Mistake,
    protocol::Protocol,
    state::{Key, Memory, Phase, State, Worker},
};

impl Protocol {
    /// Returns the next object that this batch must delete, and the paste that owns the delete.
    pub(crate) fn next_pending(memory: &Memory) -> Option<(usize, Key)> {
        let mut pending = (0..).zip(memory.pending).filter(|(paste, _)| !memory.bad.has(*paste));
        pending.find_map(|(paste, key)| Some((paste, key?)))
    }

    /// The delete is sent, carried out and answered.
    pub(crate) fn delete(&self, state: &mut State, worker: usize) {
        let (paste, key) = Self::pending_of(state, worker);
        state.bucket.remove(key.into());
        self.update(state, worker, |memory| memory.pending[paste] = None);
    }

    /// The delete is sent, but gets no answer: the worker sends it again, releases its claim or
    /// dies, and the first delete is still in flight.
    pub(crate) fn delete_late(&self, state: &mut State, worker: usize) {
        let (_, key) = Self::pending_of(state, worker);
        state.budget.late_deletes -= 1;
        state.in_flight.insert(key.into());
    }

    /// S3 answers this key with a 4xx: a row error.
    pub(crate) fn refuse(&self, state: &mut State, worker: usize) {
        let (paste, _) = Self::pending_of(state, worker);
        state.budget.refusals -= 1;
        self.update(state, worker, |memory| memory.bad.insert(paste));
    }

    pub(crate) fn carry_out(&self, state: &mut State, key: Key) {
        state.bucket.remove(key.into());
        state.in_flight.remove(key.into());
    }

    pub(crate) fn carry_out_and_repeat(&self, state: &mut State, key: Key) {
        state.budget.repeated_deletes -= 1;
        state.bucket.remove(key.into());
    }

    fn pending_of(state: &State, worker: usize) -> (usize, Key) {
        let Worker::InBatch(memory) = &state.workers[worker] else {
            panic!("worker {worker} deletes without a batch");
        };
        Self::next_pending(memory).expect("a worker in this phase has a pending delete")
    }

    /// When no delete is pending any more, the next step follows.
    fn update(&self, state: &mut State, worker: usize, update: impl Fn(&mut Memory)) {
        let Worker::InBatch(mut memory) = state.workers[worker] else {
            return;
        };
        update(&mut memory);
        if Self::next_pending(&memory).is_none() {
            let early = self.has(Mistake::ObjectsFirst);
            memory.phase = if early { Phase::Decrement { counted: None } } else { Phase::Finish };
        }
        state.workers[worker] = Worker::InBatch(memory);
    }
}
