//! Finding the bad rows of a batch by bisection, under savepoints inside the one transaction:
//! splitting across transactions would break the claim's all-or-nothing marker.
//!
//! A row that cannot be written costs itself alone. When twenty rows in a row fail, and so does one
//! of every part that was not tried yet, it is not the rows: see [`Blame`].

use std::{
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use deadpool_postgres::Transaction;
use tokio::time::Instant;
use tokio_postgres::Error;

use super::{Fault, describe};

/// So many rows that fail in a row, while none succeeds, are the database's fault.
pub const IN_A_ROW: usize = 20;
/// Parts that fail only after a wait are found in fewer steps.
const WIDE: usize = 16;
/// What is not tried by then is left for later. Less than the TTL of the lock that a claim holds, and
/// than what a whole step has (`ANSWER_WITHIN`).
const WITHIN: Duration = Duration::from_secs(20);
/// A part that takes long is found soon, too; what is done with whole batches has its usual time.
const SOON: &str = "SET LOCAL statement_timeout = 5000";
const AS_USUAL: &str = "SET LOCAL statement_timeout TO DEFAULT";

/// A write to some units of a batch, on its way.
pub type Writing<'a> = Pin<Box<dyn Future<Output = Result<u64, Refusal>> + Send + 'a>>;

/// Why some units could not be written.
#[derive(Debug)]
pub enum Refusal {
    Postgres(Error),
    /// The statement succeeded, but not for all of them: a trigger or rule swallows it.
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

/// What a statement answered that must have changed so many rows.
pub fn all_of(changed: u64, rows: usize) -> Result<u64, Refusal> {
    if changed == rows as u64 { Ok(changed) } else { Err(Refusal::Swallowed) }
}

pub const SWALLOWED: &str = "the statement succeeded, but the row is as it was: a trigger or rule of \
                             the table swallows it; drop it, or let it spare the cleanup's login";

/// What is to be done with the units.
pub trait Write<T> {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [T]) -> Writing<'a>;
}

/// A unit (a row, or a content row and all its pastes) that the write could not be applied to.
#[derive(Debug, Clone)]
pub struct Failed<T> {
    pub unit: T,
    pub error: String,
    pub fault: Fault,
    /// False: there was no time for it.
    pub was_tried: bool,
}

/// What became of the units.
#[derive(Debug)]
pub struct Applied<T> {
    pub written: u64,
    pub failed: Vec<Failed<T>>,
    /// At least one part was written.
    pub succeeded: bool,
}

#[derive(Debug)]
pub enum ApplyError<T> {
    Postgres(Error),
    /// All failed: not the rows are bad, but the database.
    Database(Vec<Failed<T>>),
}

impl<T> From<Error> for ApplyError<T> {
    fn from(error: Error) -> Self {
        Self::Postgres(error)
    }
}

/// Whether the failures of one kind of statement are the rows' own or the database's, over all
/// batches of a process: a row is blamed when the same statement has succeeded for others.
#[derive(Debug, Default)]
pub struct Blame {
    succeeded: AtomicBool,
    in_a_row: AtomicUsize,
}

impl Blame {
    /// The statement has just succeeded for some rows.
    pub fn succeeded(&self) {
        self.succeeded.store(true, Ordering::Release);
        self.in_a_row.store(0, Ordering::Release);
    }

    /// Whether a failure counts as an attempt of its row.
    pub fn counts(&self, fault: Fault) -> bool {
        match fault {
            Fault::Row => true,
            Fault::Unclear => self.succeeded.load(Ordering::Acquire),
            Fault::Locked | Fault::Slow | Fault::Transient => false,
        }
    }

    fn failed(&self, more: usize) -> usize {
        self.in_a_row.fetch_add(more, Ordering::AcqRel) + more
    }
}

/// A search for bad units that is under way.
struct Search<'a, T> {
    parts: Vec<&'a [T]>,
    applied: Applied<T>,
    /// Single units that are tried before anything is concluded, one of each untried part.
    samples_left: Option<usize>,
    until: Instant,
}

/// Applies a write to all units but those for which it fails. Rows that failed by themselves before
/// (`is_fresh` says no) prove nothing about the database.
pub async fn apply_to_good<T: Clone>(
    transaction: &mut Transaction<'_>,
    units: &[T],
    blame: &Blame,
    is_fresh: impl Fn(&T) -> bool,
    write: &impl Write<T>,
) -> Result<Applied<T>, ApplyError<T>> {
    let mut search = Search {
        parts: if units.is_empty() { Vec::new() } else { vec![units] },
        applied: Applied { written: 0, failed: Vec::new(), succeeded: false },
        samples_left: None,
        until: Instant::now() + WITHIN,
    };
    transaction.batch_execute(SOON).await?;
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
    transaction.batch_execute(AS_USUAL).await?;
    Ok(search.applied)
}

impl<T: Clone> Search<'_, T> {
    fn leave(&mut self, part: &[T]) {
        let error = "left for later: other pastes of its batch took too long";
        let later = part.iter().map(|unit| Failed {
            unit: unit.clone(),
            error: error.into(),
            fault: Fault::Slow,
            was_tried: false,
        });
        self.applied.failed.extend(later);
    }

    /// One unit failed for all of a batch that is under way, and none succeeded.
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

    /// One unit of each part that was not tried yet comes next.
    fn sample(&mut self) -> usize {
        let parts = std::mem::take(&mut self.parts);
        self.parts.extend(parts.iter().map(|part| &part[1..]).filter(|rest| !rest.is_empty()));
        self.parts.extend(parts.iter().map(|part| &part[..1]));
        parts.len()
    }
}

impl<'a, T: Clone> Search<'a, T> {
    fn narrow(&mut self, part: &'a [T], refusal: &Refusal, fault: Fault) {
        if let [unit] = part {
            let unit = unit.clone();
            let failed = Failed { unit, error: refusal.reason(), fault, was_tried: true };
            return self.applied.failed.push(failed);
        }
        let ways = if matches!(fault, Fault::Locked | Fault::Slow) { WIDE } else { 2 };
        // The first of them is tried next.
        self.parts.extend(part.chunks(part.len().div_ceil(ways)).rev());
    }
}
