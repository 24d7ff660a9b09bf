//! Step 3: the batch lets go of its references, and bodies that nobody holds are unreferenced.
//!
//! The whole transaction is one step. Between its statements others may run, but none of them can
//! change what it goes by: the fence locks the claim row, so no reset, finish or second decrement of
//! this claim comes in between; and whether a row holds a body changes only by a put or a decrement
//! of that body, which lock its content row first. (A claim, a reset or a finish of others never
//! changes who holds: rows of a decremented claim held nothing before and hold nothing after.) The
//! cross-check is a later statement and sees all that was committed before the lock was granted.
//! Take the later statement away and one step is not enough: see `Mistake::OldSnapshot`.

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Commit, Protocol},
    state::{BODIES, Doubt, End, Key, Memory, PASTES, Phase, Row, Set, State, Step, Worker},
};

impl Protocol {
    /// Around a body whose write fails: its pastes are failed in the same transaction, reference
    /// and all.
    pub fn decrement(&self, state: &mut State, worker: usize, around: Option<u8>, commit: Commit) {
        let Worker::Holding(memory) = state.workers[worker] else {
            return;
        };
        // Around a body that others hold: nobody is at fault.
        state.left.row_faults -= u8::from(around.is_some() && around != state.held);
        state.left.spend(commit);
        if commit != Commit::RolledBack && !self.may_decrement(state, &memory) {
            return self.ask(state, worker, memory, Step::Decrement, Doubt::NotFenced);
        }
        match commit {
            Commit::Heard | Commit::Unheard => self.commit_decrement(state, &memory, around),
            Commit::RolledBack => {}
            Commit::UnderWay => self.leave_behind(state, worker, Work::Decrement(memory, around)),
        }
        if commit == Commit::Heard {
            let pending_owners = state.claim(memory.claim).pending_owners;
            let pastes = Set(memory.pastes.0 & !memory.holding(around).0);
            let memory = self.decremented(Memory { pastes, ..memory }, &pending_owners);
            state.workers[worker] = Worker::Holding(memory);
        } else if !self.has(Mistake::Guesses) {
            self.ask(state, worker, memory, Step::Decrement, Doubt::NoAnswer);
        }
    }

    /// The fence.
    fn may_decrement(&self, state: &State, memory: &Memory) -> bool {
        let claim = state.claim(memory.claim);
        let marked = !self.has(Mistake::Guesses) && !self.has(Mistake::ReadsBackWithoutLock);
        let closed = claim.end.is_some() || marked && claim.decremented;
        self.has(Mistake::NoFenceInDecrement) || !closed
    }

    /// Stamps the marker.
    pub fn commit_decrement(&self, state: &mut State, memory: &Memory, around: Option<u8>) {
        state.claim_mut(memory.claim).decremented = true;
        self.decrement_references(state, memory, around);
        for paste in memory.holding(around).iter() {
            let row = state.pastes[paste].expect("the claim's rows are there");
            state.pastes[paste] = Some(self.come_back(state, row));
        }
    }

    fn decrement_references(&self, state: &mut State, memory: &Memory, around: Option<u8>) {
        for body in (0..BODIES as u8).filter(|body| Some(*body) != around) {
            let pending_owner = memory.bodies.iter().position(|held| *held == Some(body));
            let Some((pending_owner, content)) =
                pending_owner.zip(state.content[usize::from(body)])
            else {
                continue;
            };
            let references = references(memory, body);
            if content.ref_count > references {
                self.recount(state, body, content.ref_count - references);
                continue;
            }
            match self.other_holders(state, memory, body) {
                0 => {
                    state.content[usize::from(body)] = None;
                    state.claim_mut(memory.claim).pending_owners[pending_owner] =
                        Some(content.s3_key);
                }
                holders => self.recount(state, body, holders),
            }
        }
    }

    fn recount(&self, state: &mut State, body: u8, ref_count: u8) {
        let content = &mut state.content[usize::from(body)];
        content.as_mut().expect("the content row is locked").ref_count = ref_count;
    }

    /// The cross-check: who else still holds this body? This batch is marked as decremented by now.
    fn other_holders(&self, state: &State, memory: &Memory, body: u8) -> u8 {
        match (self.mistake, memory.phase) {
            (Some(Mistake::NoCrossCheck), _) => 0,
            (Some(Mistake::CountsDecremented), _) => {
                let rows = state.pastes.iter().flatten();
                let others = rows.filter(|row| row.claim != Some(memory.claim));
                others.filter(|row| row.body == Some(body)).count() as u8
            }
            (_, Phase::Decrement { looked: Some(holders) }) => holders[usize::from(body)],
            _ if !self.is_needed(state, body) => 0,
            _ => state.holders(body),
        }
    }

    /// A row that the fleet has not claimed holds it.
    fn is_needed(&self, state: &State, body: u8) -> bool {
        let seen = |row: &Row| !self.has(Mistake::OverlooksDeferred) || !row.in_progress;
        let unclaimed = |row: &&Row| row.claim.is_none() && row.body == Some(body);
        state.pastes.iter().flatten().filter(unclaimed).any(seen)
    }

    /// The statement that waits for the locks counts as well: by the snapshot from before.
    pub fn look_for_holders(&self, state: &mut State, worker: usize) {
        let others = |body: u8, memory: &Memory| state.holders(body) - own(state, memory, body);
        if let Worker::Holding(mut memory) = state.workers[worker] {
            let holders = std::array::from_fn(|body| others(body as u8, &memory));
            memory.phase = Phase::Decrement { looked: Some(holders) };
            state.workers[worker] = Worker::Holding(memory);
        }
    }

    /// What the worker knows after its decrement: old debts and new ones.
    pub fn decremented(&self, memory: Memory, pending_owners: &[Option<Key>; PASTES]) -> Memory {
        let owes = std::array::from_fn(|paste| pending_owners[paste].or(memory.owes[paste]));
        let mut memory = Memory { owes, bodies: [None; PASTES], ..memory };
        if self.has(Mistake::ObjectsFirst) {
            memory.owes = [None; PASTES];
        }
        let owing = Self::next_owed(&memory).is_some();
        memory.phase = if owing { Phase::Delete } else { Phase::Finish };
        memory
    }

    /// Deletes before the decrement is committed, by what the counts say now.
    pub fn delete_too_early(&self, state: &State, memory: &mut Memory) {
        for (pending_owner, body) in memory.bodies.into_iter().enumerate() {
            let content = body.and_then(|body| state.content[usize::from(body)].zip(Some(body)));
            let last =
                content.filter(|(content, body)| content.ref_count <= references(memory, *body));
            if let Some((content, _)) = last {
                memory.owes[pending_owner] = Some(content.s3_key);
            }
        }
        if Self::next_owed(memory).is_some() {
            memory.phase = Phase::Delete;
        }
    }
}

/// How many pastes of the batch let go of a body.
fn references(memory: &Memory, body: u8) -> u8 {
    memory.bodies.iter().filter(|held| **held == Some(body)).count() as u8
}

/// How many rows of the batch hold a body by the tables.
fn own(state: &State, memory: &Memory, body: u8) -> u8 {
    let rows = state.pastes.iter().flatten().filter(|row| row.claim == Some(memory.claim));
    let open = state.claim(memory.claim).end != Some(End::Reset);
    rows.filter(|row| open && state.holds(row, body)).count() as u8
}
