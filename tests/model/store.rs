//! S3: deletes take effect when they are carried out, which may be late, or twice, or long after
//! whoever sent them is dead. Deleting what is not there is a success.

use super::{
    mistakes::Mistake,
    protocol::Protocol,
    state::{Key, Memory, Phase, State, Worker},
};

impl Protocol {
    /// The next object that this batch must delete, and the paste that owes it.
    pub fn next_owed(memory: &Memory) -> Option<(usize, Key)> {
        let owed = (0..).zip(memory.owes).filter(|(paste, _)| !memory.bad.has(*paste));
        owed.filter_map(|(paste, key)| Some((paste, key?))).next()
    }

    /// Sent, carried out, answered.
    pub fn delete(&self, state: &mut State, worker: usize) {
        let (paste, key) = Self::owed_by(state, worker);
        state.bucket.remove(key.into());
        self.update(state, worker, |memory| memory.owes[paste] = None);
    }

    /// Sent, but the answer does not come: the worker sends it again, releases or dies, and the
    /// first one is still under way.
    pub fn delete_late(&self, state: &mut State, worker: usize) {
        let (_, key) = Self::owed_by(state, worker);
        state.left.late_deletes -= 1;
        state.under_way.insert(key.into());
    }

    /// A 4xx for this key: the row's own fault.
    pub fn refuse(&self, state: &mut State, worker: usize) {
        let (paste, _) = Self::owed_by(state, worker);
        state.left.refusals -= 1;
        self.update(state, worker, |memory| memory.bad.insert(paste));
    }

    pub fn carry_out(&self, state: &mut State, key: Key) {
        state.bucket.remove(key.into());
        state.under_way.remove(key.into());
    }

    pub fn carry_out_and_repeat(&self, state: &mut State, key: Key) {
        state.left.repeated_deletes -= 1;
        state.bucket.remove(key.into());
    }

    fn owed_by(state: &State, worker: usize) -> (usize, Key) {
        let Worker::Holding(memory) = &state.workers[worker] else {
            panic!("worker {worker} deletes without a batch");
        };
        Self::next_owed(memory).expect("worker deletes only what it owes")
    }

    /// When nothing more is owed, the next step follows.
    fn update(&self, state: &mut State, worker: usize, update: impl Fn(&mut Memory)) {
        let Worker::Holding(mut memory) = state.workers[worker] else {
            return;
        };
        update(&mut memory);
        if Self::next_owed(&memory).is_none() {
            let early = self.has(Mistake::ObjectsFirst);
            memory.phase = if early { Phase::Decrement { looked: None } } else { Phase::Finish };
        }
        state.workers[worker] = Worker::Holding(memory);
    }
}
