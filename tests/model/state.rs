//! The state of the model: two tables and the claims, the bucket, and what each process remembers.
//! Everything is a small `Copy` value, since a check clones and hashes millions of them.

use super::{backend::Backend, budget::Budget};

pub(crate) const PASTES: usize = 3;
pub(crate) const CONTENT_ROWS: usize = 2;
/// One open claim for each of the two workers, and those that crashed workers or zombies left.
pub(crate) const CLAIMS: usize = 4;
pub(crate) const WORKERS: usize = 2;

pub(crate) type Key = u8;

/// A set of small numbers: pastes or keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Set(pub u8);

impl Set {
    pub(crate) fn has(self, member: usize) -> bool {
        self.0 & 1 << member != 0
    }

    pub(crate) fn with(self, member: usize) -> Self {
        Self(self.0 | 1 << member)
    }

    pub(crate) fn without(self, member: usize) -> Self {
        Self(self.0 & !(1 << member))
    }

    pub(crate) fn insert(&mut self, member: usize) {
        *self = self.with(member);
    }

    pub(crate) fn remove(&mut self, member: usize) {
        *self = self.without(member);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |member| self.has(*member))
    }
}

/// A row of `pastes`. `attempts` and `retry_at` only delay a row: in the model any due row can be
/// claimed at any time, which includes everything that the fleet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub expired: bool,
    pub in_progress: bool,
    pub claim: Option<u8>,
    /// `None`: this row has no reference any more.
    pub content_hash: Option<u8>,
    pub pending_s3_key: Option<Key>,
}

impl Row {
    pub(crate) const fn live(hash: u8) -> Self {
        Self {
            expired: false,
            in_progress: false,
            claim: None,
            content_hash: Some(hash),
            pending_s3_key: None,
        }
    }

    pub(crate) const fn expired(hash: u8) -> Self {
        Self { expired: true, ..Self::live(hash) }
    }

    /// Sets the status back to NOT_EXPIRED.
    pub(crate) fn mark_not_expired(&mut self) {
        (self.in_progress, self.claim) = (false, None);
    }
}

/// A row of `content`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    pub s3_key: Key,
    pub ref_count: u8,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    Finished,
    Reset,
}

/// A row of `deletion_claims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    /// The process whose UUID the claim carries; `None`: that process is dead.
    pub worker: Option<u8>,
    pub decremented: bool,
    /// The key that each pending owner must delete. A paste references one content row, so it owns
    /// at most one pending key.
    pub pending_owners: [Option<Key>; PASTES],
    pub end: Option<End>,
}

/// What a worker knows about its claim: what RETURNING and the decrement returned, never the
/// current state of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Memory {
    pub claim: u8,
    pub pastes: Set,
    /// Cleared after the decrement, the last step that needs it.
    pub content_hashes: [Option<u8>; PASTES],
    /// Objects still to delete, by the paste that owns each pending delete.
    pub pending: [Option<Key>; PASTES],
    /// Pastes whose object S3 refused to delete.
    pub bad: Set,
    pub phase: Phase,
}

impl Memory {
    /// Returns the pastes of the batch that reference this content.
    pub(crate) fn referencing(&self, hash: Option<u8>) -> Set {
        let references = |paste: &usize| hash.is_some() && self.content_hashes[*paste] == hash;
        self.pastes.iter().filter(references).fold(Set::default(), Set::with)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// `counted`: the references that a decrement with a stale snapshot counted before its locks.
    Decrement {
        counted: Option<[u8; CONTENT_ROWS]>,
    },
    Delete,
    Finish,
    /// The step did not report success: the claim must be read back.
    ReadBack(Step, Doubt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Step {
    Decrement,
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Doubt {
    /// The fence matched no row.
    NotFenced,
    /// The answer to the commit was lost.
    NoAnswer,
}

/// A worker process, with one batch. After a crash the next process takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Worker {
    Idle,
    /// Inside the claim's transaction: these rows are locked.
    RowsLocked(Set),
    /// The answer to the claim's commit was lost.
    ClaimUnconfirmed,
    InBatch(Memory),
}

/// The paste service, storing one paste at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Writer {
    Idle,
    /// The upload is in the bucket; the transaction comes next. `before`: the uploads of earlier
    /// attempts whose outcome is unknown.
    Uploaded {
        key: Key,
        before: Set,
    },
    /// The answer to the transaction was lost; these are its uploads.
    InDoubt(Set),
    Dropping(Set),
}

/// One state of the whole system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub pastes: [Option<Row>; PASTES],
    pub content: [Option<Content>; CONTENT_ROWS],
    pub claims: [Option<Claim>; CLAIMS],
    /// The worker that has the Redis lock.
    pub lock: Option<u8>,
    pub workers: [Worker; WORKERS],
    /// A commit that is still in flight.
    pub backend: Option<Backend>,
    /// The content row that a transaction outside the fleet has locked.
    pub locked_content: Option<u8>,
    /// Only a watchdog with a stale claim read remembers anything.
    pub watchdog: Option<(u8, Claim)>,
    pub writer: Writer,
    pub bucket: Set,
    /// Deletes that were sent and can be carried out at any time, even if the sender is dead.
    pub in_flight: Set,
    pub next_key: Key,
    pub budget: Budget,
}

impl State {
    pub(crate) fn claim(&self, slot: u8) -> &Claim {
        self.claims[usize::from(slot)]
            .as_ref()
            .expect("a claim that a row or a process refers to is kept")
    }

    pub(crate) fn claim_mut(&mut self, slot: u8) -> &mut Claim {
        self.claims[usize::from(slot)]
            .as_mut()
            .expect("a claim that a row or a process refers to is kept")
    }

    /// Returns the pastes that a claim has locked and not yet committed.
    pub(crate) fn locked(&self) -> Set {
        self.workers.iter().fold(self.being_claimed(), |locked, worker| match worker {
            Worker::RowsLocked(pastes) => Set(locked.0 | pastes.0),
            _ => locked,
        })
    }

    /// The worker that took the Redis lock is not claiming: it crashed, and the lock will expire.
    pub(crate) fn lock_is_abandoned(&self) -> bool {
        let claiming = |holder| matches!(self.workers[usize::from(holder)], Worker::RowsLocked(_));
        self.lock.is_some_and(|holder: u8| !claiming(holder))
    }

    /// The row has a `content_hash`, and its claim, if any, has not been decremented.
    pub(crate) fn references(&self, row: &Row, hash: u8) -> bool {
        let decremented = |slot| self.claim(slot).decremented;
        row.content_hash == Some(hash) && !(row.in_progress && row.claim.is_some_and(decremented))
    }

    /// Counts the rows that reference this content.
    pub(crate) fn reference_count(&self, hash: u8) -> u8 {
        let count = self.pastes.iter().flatten().filter(|row| self.references(row, hash)).count();
        u8::try_from(count).expect("few pastes")
    }

    /// The row is in progress, but not under an open claim.
    pub(crate) fn is_stranded(&self, row: &Row) -> bool {
        row.in_progress && row.claim.is_none_or(|slot| self.claim(slot).end.is_some())
    }

    /// Another transaction has locked the content row, or a decrement in flight has.
    pub(crate) fn content_is_locked(&self, hash: u8) -> bool {
        self.locked_content == Some(hash) || self.is_being_decremented(hash)
    }

    /// Drops closed claims that no row and no process refers to, so that their ids can be reused.
    /// Nothing in the state can tell the difference.
    pub(crate) fn drop_closed_claims(&mut self) {
        for slot in 0..CLAIMS {
            let closed = self.claims[slot].is_some_and(|claim| claim.end.is_some());
            if closed && !self.is_referred_to(slot) {
                self.claims[slot] = None;
            }
        }
    }

    fn is_referred_to(&self, slot: usize) -> bool {
        let by_row =
            self.pastes.iter().flatten().any(|row| row.claim.map(usize::from) == Some(slot));
        let by_worker = self.workers.iter().any(
            |worker| matches!(worker, Worker::InBatch(memory) if usize::from(memory.claim) == slot),
        );
        by_row || by_worker || self.watchdog.is_some_and(|(read, _)| usize::from(read) == slot)
    }
}
