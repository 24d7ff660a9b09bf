//! Steps of a story, as both sides are asked for them, and what they answer.

use std::collections::{BTreeMap, BTreeSet};

use super::reference::{Status, Taken, When};

/// An action that is about to happen: it names what is really there.
#[derive(Debug, Clone)]
pub enum Step {
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
        body: u8,
        key: String,
        expires: When,
    },
    Extend {
        code: String,
        expires: When,
        plainly: bool,
    },
    ExpireNow(String),
    Refuse(Option<String>),
    /// Something else deletes a row, if it is still in this state.
    Remove {
        code: String,
        found: Status,
    },
    /// Somebody puts a row in progress back by hand, if it is still in this state.
    PutBack {
        code: String,
        found: Status,
    },
    /// Somebody marks a claim as over, finished or reset, and leaves its rows alone.
    EndByHand {
        claim: i64,
        finished: bool,
    },
    /// The claims are truncated; numbers start again. Rows in progress look old from then on.
    ForgetClaims,
    /// Another transaction holds this body's content row locked meanwhile.
    Holding(u8, Box<Step>),
    /// The owner's trigger is gone.
    OwnerRelents,
}

/// What a step answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    Claimed(Option<(i64, BTreeMap<String, Taken>)>),
    Decremented {
        /// PendingDelete keys with their pending_owners.
        unreferenced: BTreeMap<String, String>,
        bytes: i64,
        /// Bodies whose count was wrong.
        drift: usize,
    },
    /// So many objects are gone.
    Deleted(usize),
    Finished {
        rows: u64,
        /// Rows that something else deleted.
        gone: u64,
        failed: BTreeSet<String>,
    },
    Released(Sweep),
    /// The claim was reset: nothing was done.
    Lost,
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
    Broke(String),
}

/// What a sweep found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sweep {
    pub claims: usize,
    pub rows: usize,
    /// Rows that stay in progress, because somebody holds their content row.
    pub left: usize,
    pub dead_letters: usize,
    pub stranded: u64,
}

impl Sweep {
    pub fn add(&mut self, more: Self) {
        self.claims += more.claims;
        self.rows += more.rows;
        self.left += more.left;
        self.dead_letters += more.dead_letters;
        self.stranded += more.stranded;
    }
}

impl Step {
    /// The claim whose row it may lock.
    pub fn claim(&self) -> Option<i64> {
        match self {
            Self::Decrement(id) | Self::Finish(id) | Self::Release(id) | Self::ExpireLease(id) => {
                Some(*id)
            }
            Self::PutBack { found: Status::InProgress(id), .. } => *id,
            _ => None,
        }
    }

    /// Whether it may put or delete objects.
    pub fn touches_objects(&self) -> bool {
        matches!(self, Self::DeleteObjects(_) | Self::Put { .. })
    }
}
