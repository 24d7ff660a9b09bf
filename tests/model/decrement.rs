//! Step 3, decrement: subtracts the references of the batch and deletes content rows without any.
//!
//! The whole transaction is one step of the model. Other transactions can run between its
//! statements, but none of them can change what it depends on. The fence locks the claim row, so no
//! reset, finish or second decrement of this claim interleaves. Whether a row references content
//! changes only by a put or a decrement of that content, both of which lock the content row first.
//! (A claim, a reset or a finish by another worker never changes a reference: the rows of a
//! decremented claim had none before and have none after.) The cross-check is a later statement
//! and sees everything that was committed before the lock was granted. As part of the locking
//! statement it would not, and one step would not be enough: see `Mistake::StaleSnapshot`.

use super::{
    backend::Work,
    mistakes::Mistake,
    protocol::{Commit, Protocol},
    state::{CONTENT_ROWS, Doubt, End, Key, Memory, PASTES, Phase, Row, Set, State, Step, Worker},
};

impl Protocol {
    /// Decrements the batch. `except` is content whose write fails: its pastes are failed in the
    /// same transaction, and keep their references.
    pub(crate) fn decrement(
        &self,
        state: &mut State,
        worker: usize,
        except: Option<u8>,
        commit: Commit,
    ) {
        let Worker::InBatch(memory) = state.workers[worker] else {
            return;
        };
        // Content that another transaction has locked is not a row error.
        state.budget.row_errors -= u8::from(except.is_some() && except != state.locked_content);
        state.budget.spend(commit);
        if commit != Commit::RolledBack && !self.may_decrement(state, &memory) {
            return self.must_read_back(state, worker, memory, Step::Decrement, Doubt::NotFenced);
        }
        match commit {
            Commit::Answered | Commit::AnswerLost => self.commit_decrement(state, &memory, except),
            Commit::RolledBack => {}
            Commit::InFlight => {
                self.leave_in_flight(state, worker, Work::Decrement(memory, except));
            }
        }
        if commit == Commit::Answered {
            let pending_owners = state.claim(memory.claim).pending_owners;
            let pastes = Set(memory.pastes.0 & !memory.referencing(except).0);
            let memory = self.decremented(Memory { pastes, ..memory }, &pending_owners);
            state.workers[worker] = Worker::InBatch(memory);
        } else if !self.has(Mistake::AssumesRollback) {
            self.must_read_back(state, worker, memory, Step::Decrement, Doubt::NoAnswer);
        }
    }

    /// The fence: the claim is open and not decremented yet.
    fn may_decrement(&self, state: &State, memory: &Memory) -> bool {
        let claim = state.claim(memory.claim);
        let marked =
            !self.has(Mistake::AssumesRollback) && !self.has(Mistake::ReadsBackWithoutLock);
        let closed = claim.end.is_some() || marked && claim.decremented;
        self.has(Mistake::NoFenceInDecrement) || !closed
    }

    /// Stamps `decremented_at`, subtracts the references and fails the excepted rows.
    pub(crate) fn commit_decrement(&self, state: &mut State, memory: &Memory, except: Option<u8>) {
        state.claim_mut(memory.claim).decremented = true;
        self.decrement_references(state, memory, except);
        for paste in memory.referencing(except).iter() {
            let row = state.pastes[paste].expect("the claim's rows exist");
            state.pastes[paste] = Some(self.reset_row(state, row));
        }
    }

    fn decrement_references(&self, state: &mut State, memory: &Memory, except: Option<u8>) {
        for hash in (0..CONTENT_ROWS as u8).filter(|hash| Some(*hash) != except) {
            let pending_owner = memory.content_hashes.iter().position(|own| *own == Some(hash));
            let Some((pending_owner, content)) =
                pending_owner.zip(state.content[usize::from(hash)])
            else {
                continue;
            };
            let references = batch_references(memory, hash);
            if content.ref_count > references {
                self.recount(state, hash, content.ref_count - references);
                continue;
            }
            match self.other_references(state, memory, hash) {
                0 => {
                    state.content[usize::from(hash)] = None;
                    state.claim_mut(memory.claim).pending_owners[pending_owner] =
                        Some(content.s3_key);
                }
                references => self.recount(state, hash, references),
            }
        }
    }

    fn recount(&self, state: &mut State, hash: u8, ref_count: u8) {
        let content = &mut state.content[usize::from(hash)];
        content.as_mut().expect("the content row is locked").ref_count = ref_count;
    }

    /// The cross-check: counts the references of other rows. This batch is already marked as
    /// decremented.
    fn other_references(&self, state: &State, memory: &Memory, hash: u8) -> u8 {
        match (self.mistake, memory.phase) {
            (Some(Mistake::NoCrossCheck), _) => 0,
            (Some(Mistake::CountsDecremented), _) => {
                let rows = state.pastes.iter().flatten();
                let others = rows.filter(|row| row.claim != Some(memory.claim));
                others.filter(|row| row.content_hash == Some(hash)).count() as u8
            }
            (_, Phase::Decrement { counted: Some(references) }) => references[usize::from(hash)],
            _ if !self.is_needed(state, hash) => 0,
            _ => state.reference_count(hash),
        }
    }

    /// A row that the fleet has not claimed references the content.
    fn is_needed(&self, state: &State, hash: u8) -> bool {
        let seen = |row: &Row| !self.has(Mistake::IgnoresDeferredRows) || !row.in_progress;
        let unclaimed = |row: &&Row| row.claim.is_none() && row.content_hash == Some(hash);
        state.pastes.iter().flatten().filter(unclaimed).any(seen)
    }

    /// The statement that waits for the locks also counts, by its snapshot from before the wait.
    pub(crate) fn count_references_early(&self, state: &mut State, worker: usize) {
        let others = |hash: u8, memory: &Memory| {
            state.reference_count(hash) - own_references(state, memory, hash)
        };
        if let Worker::InBatch(mut memory) = state.workers[worker] {
            let references = std::array::from_fn(|hash| others(hash as u8, &memory));
            memory.phase = Phase::Decrement { counted: Some(references) };
            state.workers[worker] = Worker::InBatch(memory);
        }
    }

    /// Returns what the worker knows after its decrement: old and new pending object deletes.
    pub(crate) fn decremented(
        &self,
        memory: Memory,
        pending_owners: &[Option<Key>; PASTES],
    ) -> Memory {
        let pending = std::array::from_fn(|paste| pending_owners[paste].or(memory.pending[paste]));
        let mut memory = Memory { pending, content_hashes: [None; PASTES], ..memory };
        if self.has(Mistake::ObjectsFirst) {
            memory.pending = [None; PASTES];
        }
        let has_pending = Self::next_pending(&memory).is_some();
        memory.phase = if has_pending { Phase::Delete } else { Phase::Finish };
        memory
    }

    /// Deletes objects before the decrement is committed, by the counts of that moment.
    pub(crate) fn delete_too_early(&self, state: &State, memory: &mut Memory) {
        for (pending_owner, hash) in memory.content_hashes.into_iter().enumerate() {
            let content = hash.and_then(|hash| state.content[usize::from(hash)].zip(Some(hash)));
            let last = content
                .filter(|(content, hash)| content.ref_count <= batch_references(memory, *hash));
            if let Some((content, _)) = last {
                memory.pending[pending_owner] = Some(content.s3_key);
            }
        }
        if Self::next_pending(memory).is_some() {
            memory.phase = Phase::Delete;
        }
    }
}

/// Counts the pastes of the batch that reference this content, as the worker remembers them.
fn batch_references(memory: &Memory, hash: u8) -> u8 {
    memory.content_hashes.iter().filter(|own| **own == Some(hash)).count() as u8
}

/// Counts the rows of the batch that reference this content, by the tables.
fn own_references(state: &State, memory: &Memory, hash: u8) -> u8 {
    let rows = state.pastes.iter().flatten().filter(|row| row.claim == Some(memory.claim));
    let open = state.claim(memory.claim).end != Some(End::Reset);
    rows.filter(|row| open && state.references(row, hash)).count() as u8
}
