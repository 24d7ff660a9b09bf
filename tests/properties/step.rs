//! The steps of a scenario, as the servers and the reference run them, and their answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::reference::{ClaimedPaste, Status, When};

/// An action whose numbers are resolved to claims and pastes that exist.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Claim {
        worker: usize,
        size: u32,
        busy: bool,
        after: Option<i64>,
    },
    Decrement(i64),
    DeleteObjects(i64),
    Finish(i64),
    Release(i64),
    ExpireLease(i64),
    Sweep,
    EndBackoff(Vec<(String, i64)>),
    Put {
        code: String,
        content_id: u8,
        key: String,
        expires: When,
    },
    Extend {
        code: String,
        expires: When,
        plain_update: bool,
    },
    ExpireNow(String),
    Refuse(Option<String>),
    /// Something other than the fleet deletes a row, if it is still in this state.
    DeleteRow {
        code: String,
        found: Status,
    },
    /// An operator resets a row in progress by hand, if it is still in this state.
    ResetByHand {
        code: String,
        found: Status,
    },
    /// An operator marks a claim as finished or reset, and leaves its rows alone.
    EndByHand {
        claim: i64,
        finished: bool,
    },
    /// `deletion_claims` is truncated and ids start again. Rows in progress are old from then on.
    TruncateClaims,
    /// The step runs while another transaction locks this content row.
    WhileLocked(u8, Box<Step>),
    /// The owner drops its trigger.
    DropOwnerTrigger,
}

/// The answer to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Claimed(Option<(i64, BTreeMap<String, ClaimedPaste>)>),
    Decremented {
        /// The keys of unreferenced content, with the pastes that own the pending deletes.
        unreferenced: BTreeMap<String, String>,
        bytes: i64,
        /// Content rows whose count was wrong.
        drift: usize,
    },
    /// The number of deleted objects.
    Deleted(usize),
    Finished {
        rows: u64,
        /// Rows that something other than the fleet deleted.
        gone: u64,
        failed: BTreeSet<String>,
    },
    Released(Sweep),
    /// The claim was reset: nothing was done.
    LeaseLost,
    /// The claim is not in the expected state: nothing was done.
    Refused,
    Swept(Sweep),
    Put {
        outcome: String,
        key: Option<String>,
        dropped: bool,
    },
    /// Whether there was something to do.
    Changed(bool),
    Error(String),
}

/// The result of a sweep or a release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub claims: usize,
    pub rows: usize,
    /// Rows that stay in progress, because another transaction locks their content row.
    pub deferred: usize,
    pub dead_letters: usize,
    pub stranded: u64,
}

impl Sweep {
    pub(crate) fn add(&mut self, more: Self) {
        self.claims += more.claims;
        self.rows += more.rows;
        self.deferred += more.deferred;
        self.dead_letters += more.dead_letters;
        self.stranded += more.stranded;
    }
}

impl Answer {
    /// Returns the claim that the step made, if any.
    pub(crate) fn claim_id(&self) -> Option<i64> {
        match self {
            Self::Claimed(Some((id, _))) => Some(*id),
            _ => None,
        }
    }
}

impl Step {
    /// Returns the claim whose row the step can lock.
    pub(crate) fn claim(&self) -> Option<i64> {
        match self {
            Self::Decrement(id) | Self::Finish(id) | Self::Release(id) | Self::ExpireLease(id) => {
                Some(*id)
            }
            Self::ResetByHand { found: Status::InProgress(id), .. } => *id,
            _ => None,
        }
    }

    /// The step can upload or delete objects.
    pub(crate) fn touches_objects(&self) -> bool {
        matches!(self, Self::DeleteObjects(_) | Self::Put { .. })
    }
}
