//! Finds the bad rows of a batch by bisection, under savepoints of one transaction. Several
//! transactions would not do: `decremented_at` and `finished_at` are one mark for the whole batch.
//!
//! A row that cannot be written does not affect the others. If twenty rows in a row fail, and one row of
//! every part that was not tried yet fails as well, the cause is the database, not the rows: see
//! [`Blame`].

mod slow;

use std::{
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use deadpool_postgres::Transaction;
use tokio::time::Instant;
use tokio_postgres::Error;

use self::slow::try_alone;
use super::{Fault, describe};

/// If this many rows fail in a row and none succeeds, the cause is the database.
pub const IN_A_ROW: usize = 20;
/// Number of parts after a failure that took long (a lock, a timeout), to find the row in fewer steps.
const WIDE: usize = 16;
const DEFAULT_TIMEOUT: &str = "SET LOCAL statement_timeout TO DEFAULT";

/// How long a search for bad units may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For each part, so that a slow one is found soon; statements for whole batches keep their own.
    pub part: Duration,
    /// Rows not tried within this time are left for later. Less than the TTL of the lock that a claim
    /// holds.
    pub search: Duration,
    /// After the search, for units that are too slow for `part`, one after another.
    pub alone: Duration,
}

impl Limits {
    /// The default. Units that are too slow for `part` are left: a lock may be held meanwhile.
    pub const SEARCH: Self = Self {
        part: Duration::from_secs(5),
        search: Duration::from_secs(20),
        alone: Duration::ZERO,
    };
    /// For a step without a lock. All of it is less than the time of a whole step (`ANSWER_WITHIN`).
    pub const STEP: Self = Self { alone: Duration::from_secs(35), ..Self::SEARCH };
}

/// The future of a write to some units of a batch.
pub type Writing<'a> = Pin<Box<dyn Future<Output = Result<u64, Refusal>> + Send + 'a>>;

/// Why some units could not be written.
#[derive(Debug)]
pub enum Refusal {
    /// The statement failed.
    Postgres(Error),
    /// The statement succeeded, but did not change all rows: a trigger or rule swallows it.
    Swallowed,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

impl Refusal {
    fn fault(&self) -> Fault {
        match self {
            Self::Postgres(error) => Fault::of(error),
            Self::Swallowed => Fault::Unclear,
        }
    }

    fn reason(&self) -> String {
        match self {
            Self::Postgres(error) => describe(error),
            Self::Swallowed => SWALLOWED.into(),
        }
    }
}

/// Returns an error unless a statement has changed all `rows`.
pub fn all_of(changed: u64, rows: usize) -> Result<u64, Refusal> {
    if changed == rows as u64 { Ok(changed) } else { Err(Refusal::Swallowed) }
}

/// The error of a row that a successful statement did not change.
pub const SWALLOWED: &str = "the statement succeeded but did not change the row: a trigger or rule of \
                             the table swallows it; drop it, or make it ignore the cleanup's login";

/// A write that is applied to the units of a batch.
pub trait Write<T> {
    /// Writes some units, and returns the number of rows written.
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [T]) -> Writing<'a>;

    /// Returns how long the search may take if the write fails for some units.
    fn limits(&self) -> Limits {
        Limits::SEARCH
    }
}

/// A unit (a row, or a content row and all its pastes) that could not be written.
#[derive(Debug, Clone)]
pub struct Failed<T> {
    /// The unit, as it was passed to the search.
    pub unit: T,
    /// Why, in one line for a person.
    pub error: String,
    /// What the failure proves about the unit; `Slow` if it was not tried.
    pub fault: Fault,
    /// False: the time limit was reached before it.
    pub was_tried: bool,
}

/// The result of a search for bad units.
#[derive(Debug)]
pub struct Applied<T> {
    /// The number of rows written, as [`Write::write`] returned it.
    pub written: u64,
    /// The units that were not written, whether they were tried or not.
    pub failed: Vec<Failed<T>>,
    /// At least one part was written.
    pub succeeded: bool,
}

/// Why the good units could not be written either.
#[derive(Debug)]
pub enum ApplyError<T> {
    /// A transient error: the transaction cannot continue.
    Postgres(Error),
    /// All units failed: the cause is the database, not the rows.
    Database(Vec<Failed<T>>),
}

impl<T> From<Error> for ApplyError<T> {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

/// Decides whether failures of one kind of statement are row errors or the database's fault, over all
/// batches of a process: it is a row error if the same statement has succeeded for other rows.
#[derive(Debug, Default)]
pub struct Blame {
    succeeded: AtomicBool,
    in_a_row: AtomicUsize,
}

impl Blame {
    /// Records that the statement has succeeded for some rows.
    pub fn succeeded(&self) {
        self.succeeded.store(true, Ordering::Release);
        self.in_a_row.store(0, Ordering::Release);
    }

    /// Returns whether a failure is a row error, and counts as an attempt of its row.
    pub fn counts(&self, fault: Fault) -> bool {
        match fault {
            Fault::Row => true,
            Fault::Unclear => self.succeeded.load(Ordering::Acquire),
            Fault::Locked | Fault::Slow | Fault::Transient => false,
        }
    }

    /// Records failures, and returns how many there were in a row.
    fn failed(&self, more: usize) -> usize {
        self.in_a_row.fetch_add(more, Ordering::AcqRel) + more
    }
}

/// The state of a search for bad units.
struct Search<'a, T> {
    parts: Vec<&'a [T]>,
    applied: Applied<T>,
    /// Single units still to be tried before the database is blamed, one of each untried part.
    samples_left: Option<usize>,
    until: Instant,
}

/// Applies a write to all units except those for which it fails. Rows that failed by themselves before
/// (`is_fresh` returns false) prove nothing about the database.
pub async fn apply_to_good<T: Clone>(
    transaction: &mut Transaction<'_>,
    units: &[T],
    blame: &Blame,
    is_fresh: impl Fn(&T) -> bool,
    write: &impl Write<T>,
) -> Result<Applied<T>, ApplyError<T>> {
    let limits = write.limits();
    let mut search = Search {
        parts: if units.is_empty() { Vec::new() } else { vec![units] },
        applied: Applied { written: 0, failed: Vec::new(), succeeded: false },
        samples_left: None,
        until: Instant::now() + limits.search,
    };
    transaction.batch_execute(&timeout(limits.part)).await?;
    while let Some(part) = search.parts.pop() {
        if Instant::now() >= search.until {
            search.leave(part);
            continue;
        }
        let savepoint = transaction.savepoint("part").await?;
        match write.write(&savepoint, part).await {
            Ok(rows) => {
                savepoint.commit().await?;
                search.applied.written += rows;
                search.applied.succeeded = true;
                search.samples_left = None;
                blame.succeeded();
            }
            Err(refusal) => match (refusal.fault(), refusal) {
                (Fault::Transient, Refusal::Postgres(error)) => return Err(error.into()),
                (fault, refusal) => {
                    savepoint.rollback().await?;
                    search.narrow(part, &refusal, fault);
                    let fresh = |unit: &T| fault == Fault::Unclear && is_fresh(unit);
                    if part.len() == 1 && part.iter().any(fresh) && search.is_permanent(blame) {
                        return Err(ApplyError::Database(search.applied.failed));
                    }
                }
            },
        }
    }
    let mut applied = search.applied;
    try_alone(transaction, &mut applied, blame, write, limits.alone).await?;
    transaction.batch_execute(DEFAULT_TIMEOUT).await?;
    Ok(applied)
}

fn timeout(time: Duration) -> String {
    // Zero would be no timeout at all.
    format!("SET LOCAL statement_timeout = {}", time.as_millis().max(1))
}

impl<T: Clone> Search<'_, T> {
    /// Leaves a part for later, because the time limit is reached.
    fn leave(&mut self, part: &[T]) {
        let error = "not tried: other pastes of its batch took too long";
        let later = part.iter().map(|unit| Failed {
            unit: unit.clone(),
            error: error.into(),
            fault: Fault::Slow,
            was_tried: false,
        });
        self.applied.failed.extend(later);
    }

    /// Records the failure of one unit, and returns whether the database is at fault: enough units failed
    /// in a row, none succeeded, and the samples of all untried parts failed as well.
    fn is_permanent(&mut self, blame: &Blame) -> bool {
        let in_a_row = blame.failed(1);
        if self.applied.succeeded || in_a_row < IN_A_ROW {
            return false;
        }
        let left = match self.samples_left {
            Some(left) => left.saturating_sub(1),
            None => self.sample(),
        };
        self.samples_left = Some(left);
        left == 0
    }

    /// Queues one unit of each untried part next, and returns how many.
    fn sample(&mut self) -> usize {
        let parts = std::mem::take(&mut self.parts);
        self.parts.extend(parts.iter().map(|part| &part[1..]).filter(|rest| !rest.is_empty()));
        self.parts.extend(parts.iter().map(|part| &part[..1]));
        parts.len()
    }
}

impl<'a, T: Clone> Search<'a, T> {
    /// Records the failure of a single unit, or splits a part that failed.
    fn narrow(&mut self, part: &'a [T], refusal: &Refusal, fault: Fault) {
        if let [unit] = part {
            let unit = unit.clone();
            let failed = Failed { unit, error: refusal.reason(), fault, was_tried: true };
            return self.applied.failed.push(failed);
        }
        let ways = if matches!(fault, Fault::Locked | Fault::Slow) { WIDE } else { 2 };
        // Reversed, so that the first part is tried next.
        self.parts.extend(part.chunks(part.len().div_ceil(ways)).rev());
    }
}
