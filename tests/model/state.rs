//! The world of the model: two tables and the claims, the bucket, and what each process remembers.
//! Everything is a small `Copy` value, since a check clones and hashes millions of them.

use super::{backend::Backend, protocol::Commit};

pub const PASTES: usize = 3;
pub const BODIES: usize = 2;
/// Two open claims of the two workers, and those that crashed workers or zombies left behind.
pub const CLAIMS: usize = 4;
pub const WORKERS: usize = 2;

pub type Key = u8;

/// A set of small numbers: pastes or keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Set(pub u8);

impl Set {
    pub fn has(self, member: usize) -> bool {
        self.0 & 1 << member != 0
    }

    pub fn with(self, member: usize) -> Self {
        Self(self.0 | 1 << member)
    }

    pub fn without(self, member: usize) -> Self {
        Self(self.0 & !(1 << member))
    }

    pub fn insert(&mut self, member: usize) {
        *self = self.with(member);
    }

    pub fn remove(&mut self, member: usize) {
        *self = self.without(member);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |member| self.has(*member))
    }
}

/// A row of `pastes`. `attempts` and `retry_at` only delay a row: here any due row may be claimed
/// at any time, which is more than the fleet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    pub expired: bool,
    pub in_progress: bool,
    pub claim: Option<u8>,
    /// `content_hash`; `None`: this row no longer holds a reference.
    pub body: Option<u8>,
    pub pending_s3_key: Option<Key>,
}

impl Row {
    pub const fn holding(body: u8) -> Self {
        Self {
            expired: false,
            in_progress: false,
            claim: None,
            body: Some(body),
            pending_s3_key: None,
        }
    }

    pub const fn expired(body: u8) -> Self {
        Self { expired: true, ..Self::holding(body) }
    }

    /// Back to NOT_EXPIRED.
    pub fn let_go(&mut self) {
        (self.in_progress, self.claim) = (false, None);
    }
}

/// A row of `content`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Content {
    pub s3_key: Key,
    pub ref_count: u8,
}

/// How a claim ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Finished,
    Reset,
}

/// A row of `deletion_claims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The process whose UUID it carries; `None`: that process is no more.
    pub worker: Option<u8>,
    pub decremented: bool,
    /// The key that each pending_owner owes. A paste has one body, so it is the pending_owner of one key at most.
    pub pending_owners: [Option<Key>; PASTES],
    pub end: Option<End>,
}

/// What a worker knows of its claim: what RETURNING and the decrement told it, never the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Memory {
    pub claim: u8,
    pub pastes: Set,
    /// Forgotten after the decrement, which is the last to need it.
    pub bodies: [Option<u8>; PASTES],
    /// Objects still to delete, by the paste that owes each.
    pub owes: [Option<Key>; PASTES],
    /// Pastes whose object was refused.
    pub bad: Set,
    pub phase: Phase,
}

impl Memory {
    /// The pastes of the batch that hold this body.
    pub fn holding(&self, body: Option<u8>) -> Set {
        let holds = |paste: &usize| body.is_some() && self.bodies[*paste] == body;
        self.pastes.iter().filter(holds).fold(Set::default(), Set::with)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Only a decrement that judges by an old snapshot has looked before it locks.
    Decrement {
        looked: Option<[u8; BODIES]>,
    },
    Delete,
    Finish,
    /// The step did not say that it succeeded: the claim must be read back.
    Ask(Step, Doubt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    Decrement,
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doubt {
    /// The fence matched no row.
    NotFenced,
    /// The commit's answer was lost.
    NoAnswer,
}

/// A worker process, with one batch. After a crash the next process takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worker {
    Idle,
    /// Inside the claim's transaction: these rows are locked.
    Picking(Set),
    /// The claim's answer was lost.
    AskClaims,
    Holding(Memory),
}

/// The paste service, storing one paste at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    Idle,
    /// The body is in the bucket; the transaction comes next. `before`: the uploads of earlier
    /// tries, whose outcome is unknown.
    Uploaded {
        key: Key,
        before: Set,
    },
    /// The transaction's answer was lost; these are the uploads.
    Unsure(Set),
    Dropping(Set),
}

/// What may still go wrong, or come in from outside: every entry is used up one by one, so that
/// the state space is finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Left {
    pub crashes: u8,
    /// Resets of claims whose worker lives: it was paused, and goes on as a zombie.
    pub lease_expiries: u8,
    pub lost_answers: u8,
    /// Commits of workers that are still under way when their connection is lost.
    pub slow_commits: u8,
    pub lost_locks: u8,
    pub releases: u8,
    /// Deletes that time out and stay under way.
    pub late_deletes: u8,
    /// Deletes that are carried out once more.
    pub repeated_deletes: u8,
    /// Keys that S3 refuses to delete.
    pub refusals: u8,
    /// Writes that fail for a row of the batch (SQLSTATE classes 22 and 23).
    pub row_faults: u8,
    pub puts: u8,
    pub extensions: u8,
    /// Transactions of others that hold a content row for a while.
    pub holds: u8,
    /// Rows that a finish or a reset can neither delete nor change: a trigger refuses it.
    pub leftovers: u8,
}

impl Left {
    /// A commit whose answer does not come uses something up.
    pub fn spend(&mut self, commit: Commit) {
        match commit {
            Commit::Heard => {}
            Commit::Unheard | Commit::RolledBack => self.lost_answers -= 1,
            Commit::UnderWay => self.slow_commits -= 1,
        }
    }
}

/// One state of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub pastes: [Option<Row>; PASTES],
    pub content: [Option<Content>; BODIES],
    pub claims: [Option<Claim>; CLAIMS],
    /// Who has the Redis lock.
    pub lock: Option<u8>,
    pub workers: [Worker; WORKERS],
    /// A commit that is still under way.
    pub backend: Option<Backend>,
    /// The body whose content row a transaction of others holds locked.
    pub held: Option<u8>,
    /// Only a watchdog that goes by an earlier look remembers anything.
    pub watchdog: Option<(u8, Claim)>,
    pub writer: Writer,
    pub bucket: Set,
    /// Deletes that were sent and may be carried out at any time, whoever sent them.
    pub under_way: Set,
    pub next_key: Key,
    pub left: Left,
}

impl State {
    pub fn claim(&self, slot: u8) -> &Claim {
        self.claims[usize::from(slot)].as_ref().expect("a claim that somebody remembers is kept")
    }

    pub fn claim_mut(&mut self, slot: u8) -> &mut Claim {
        self.claims[usize::from(slot)].as_mut().expect("a claim that somebody remembers is kept")
    }

    /// Pastes that somebody's claim has locked and not yet committed.
    pub fn locked(&self) -> Set {
        self.workers.iter().fold(self.being_claimed(), |locked, worker| match worker {
            Worker::Picking(pastes) => Set(locked.0 | pastes.0),
            _ => locked,
        })
    }

    /// Whoever has the Redis lock does not claim any more: it crashed, and the lock will expire.
    pub fn lock_is_abandoned(&self) -> bool {
        let claiming = |holder| matches!(self.workers[usize::from(holder)], Worker::Picking(_));
        self.lock.is_some_and(|holder: u8| !claiming(holder))
    }

    /// Holds a reference: has a `content_hash`, and its claim, if any, has not been decremented.
    pub fn holds(&self, row: &Row, body: u8) -> bool {
        let decremented = |slot| self.claim(slot).decremented;
        row.body == Some(body) && !(row.in_progress && row.claim.is_some_and(decremented))
    }

    /// How many rows hold a body.
    pub fn holders(&self, body: u8) -> u8 {
        let holders = self.pastes.iter().flatten().filter(|row| self.holds(row, body)).count();
        u8::try_from(holders).expect("few pastes")
    }

    /// In progress, but no open claim covers it.
    pub fn is_stray(&self, row: &Row) -> bool {
        row.in_progress && row.claim.is_none_or(|slot| self.claim(slot).end.is_some())
    }

    /// Another transaction holds it, or a decrement under way.
    pub fn content_is_locked(&self, body: u8) -> bool {
        self.held == Some(body) || self.body_is_locked(body)
    }

    /// Closed claims that nobody remembers are history. Their ids may be given out again: no row
    /// and no process can tell.
    pub fn forget_history(&mut self) {
        for slot in 0..CLAIMS {
            let closed = self.claims[slot].is_some_and(|claim| claim.end.is_some());
            if closed && !self.remembered(slot) {
                self.claims[slot] = None;
            }
        }
    }

    fn remembered(&self, slot: usize) -> bool {
        let by_row =
            self.pastes.iter().flatten().any(|row| row.claim.map(usize::from) == Some(slot));
        let by_worker = self.workers.iter().any(
            |worker| matches!(worker, Worker::Holding(memory) if usize::from(memory.claim) == slot),
        );
        by_row || by_worker || self.watchdog.is_some_and(|(looked, _)| usize::from(looked) == slot)
    }
}
