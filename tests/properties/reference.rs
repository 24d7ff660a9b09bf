//! The reference: what the tables and the bucket must contain, in plain maps. It uses no SQL, no S3
//! and none of the product's code. `batch`, `finish` and `reset` apply the steps of claims to it,
//! `outside` those of writers and operators.

pub(crate) mod batch;
mod finish;
mod invariants;
mod outside;
mod reset;

use std::collections::{BTreeMap, BTreeSet};

use crate::scenario::OwnerTrigger;

/// Failures before a paste becomes a dead letter, in the workers' settings.
pub(crate) const MAX_ATTEMPTS: i16 = 4;
/// The batch size in the settings; claims request any size.
pub(crate) const BATCH_SIZE: u32 = 20;
/// The longest backoff in seconds; low enough to be reached.
pub(crate) const BACKOFF_CAP: i64 = 8;
/// The scenario time of events that use Postgres' clock, later than all initial times.
const NOW: i64 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    NotExpired,
    /// In progress under this claim, or marked by something other than the fleet.
    InProgress(Option<i64>),
    /// In progress under a claim id that has no claim row any more.
    UnknownClaim(i64),
    Deleted,
}

/// A time of a row. Past times are seconds of the scenario's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Unset,
    Past(i64),
    /// This many seconds after it was set.
    Later(i64),
    /// A dead letter.
    Infinity,
}

/// The kind of error in `last_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastError {
    None,
    Worker,
    S3,
    /// The owner's trigger.
    OwnerTrigger,
    /// A transaction that locks its content row.
    Locked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paste {
    pub status: Status,
    pub content_id: Option<u8>,
    pub pending_s3_key: Option<String>,
    pub attempts: i16,
    pub expires: When,
    pub retry: When,
    pub last_error: LastError,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub key: String,
    pub ref_count: i32,
}

/// The claim row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    pub worker: usize,
    pub rows_claimed: usize,
    /// Open, and without a heartbeat for hours.
    pub expired: bool,
    pub decremented: bool,
    pub finished: bool,
    pub reset: bool,
    /// The paste that owns each pending object delete. After the claim's end: those that no row
    /// took over.
    pub pending_owners: BTreeMap<String, String>,
    pub rows_deleted: Option<u64>,
}

/// A paste as the claim returned it to its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimedPaste {
    pub content_id: Option<u8>,
    pub pending_s3_key: Option<String>,
    pub attempts: i16,
}

/// A claim: its row, and what its worker knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claim {
    pub lease: Lease,
    pub claimed: BTreeMap<String, ClaimedPaste>,
    pub last_due: i64,
    /// The keys of the content rows when it was made. Content that is stored again has another key.
    pub stored: BTreeSet<String>,
    pub bytes: i64,
    /// The keys of unreferenced content with their owners, once its worker has decremented.
    pub unreferenced_keys: Option<BTreeMap<String, String>>,
    /// The keys that S3 refused with their owners, once its worker has deleted the others.
    pub refused: Option<BTreeMap<String, String>>,
}

impl Claim {
    pub(crate) fn is_open(&self) -> bool {
        !self.lease.finished && !self.lease.reset
    }
}

/// The whole expected state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reference {
    pub pastes: BTreeMap<String, Paste>,
    pub content: BTreeMap<u8, Content>,
    pub objects: BTreeSet<String>,
    pub claims: BTreeMap<i64, Claim>,
    /// S3 refuses keys that contain this text.
    pub refusing: Option<String>,
    /// Claims that another transaction locks at the moment: a sweep skips them.
    pub locked_claims: BTreeSet<i64>,
    /// The content row that another transaction locks at the moment.
    pub locked_content: Option<u8>,
    /// What the owner's trigger does to the DELETE of some pastes.
    pub owner: Option<OwnerTrigger>,
    /// The rows that have each pending key in the tables, for where the product is free to choose.
    pub actual_owners: BTreeMap<String, BTreeSet<String>>,
    /// Uploads so far: no key is used twice.
    pub uploads: u32,
    pub clock: i64,
}

/// The part of it that can be observed on the servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub pastes: BTreeMap<String, Paste>,
    pub content: BTreeMap<u8, Content>,
    pub objects: BTreeSet<String>,
    pub claims: BTreeMap<i64, Lease>,
    /// The due pastes, longest overdue first.
    pub queue: Vec<String>,
}

impl Paste {
    pub(crate) fn new(content_id: Option<u8>, expires: When) -> Self {
        Self {
            status: Status::NotExpired,
            content_id,
            pending_s3_key: None,
            attempts: 0,
            expires,
            retry: When::Unset,
            last_error: LastError::None,
        }
    }

    /// Returns the time since when it is due, if it is.
    pub(crate) fn due(&self) -> Option<i64> {
        match (self.status, self.expires, self.retry) {
            (Status::NotExpired, When::Past(at), When::Unset) => Some(at),
            (Status::NotExpired, When::Past(_), When::Past(at)) => Some(at),
            _ => None,
        }
    }

    pub(crate) fn has_expired(&self) -> bool {
        matches!(self.expires, When::Past(_))
    }

    /// It has its reference, and is not being deleted.
    pub(crate) fn can_be_changed(&self) -> bool {
        self.status == Status::NotExpired && self.content_id.is_some()
    }
}

/// Reduces a time to what can be compared: whether it has come.
fn reduced(when: When) -> When {
    match when {
        When::Past(_) => When::Past(0),
        When::Later(_) => When::Later(0),
        when => when,
    }
}

impl Reference {
    pub(crate) fn state(&self) -> State {
        let flat = |paste: &Paste| Paste {
            expires: reduced(paste.expires),
            retry: reduced(paste.retry),
            ..paste.clone()
        };
        State {
            pastes: self.pastes.iter().map(|(code, paste)| (code.clone(), flat(paste))).collect(),
            content: self.content.clone(),
            objects: self.objects.clone(),
            claims: self.claims.iter().map(|(id, claim)| (*id, claim.lease.clone())).collect(),
            queue: self.queue().into_iter().map(|(_, code)| code).collect(),
        }
    }

    /// Returns the due pastes, longest overdue first.
    pub(crate) fn queue(&self) -> Vec<(i64, String)> {
        let due = |(code, paste): (&String, &Paste)| Some((paste.due()?, code.clone()));
        let mut queue: Vec<_> = self.pastes.iter().filter_map(due).collect();
        queue.sort();
        queue
    }

    /// Returns the keys that only an ended claim has: their objects stay until their rows are
    /// reset.
    pub(crate) fn keys_kept_by_claims(&self) -> BTreeSet<String> {
        let expired = self.pastes.values().filter(|paste| paste.has_expired());
        let pending: BTreeSet<&String> =
            expired.filter_map(|paste| paste.pending_s3_key.as_ref()).collect();
        let ended = self.claims.values().filter(|claim| !claim.is_open());
        let kept = ended.flat_map(|claim| claim.lease.pending_owners.keys());
        kept.filter(|key| !pending.contains(key)).cloned().collect()
    }

    /// Returns the next moment of Postgres' clock.
    pub(crate) fn tick(&mut self) -> i64 {
        self.clock += 1;
        NOW + self.clock
    }

    /// Returns a key that was never used before.
    pub(crate) fn fresh_key(&mut self, content_id: u8) -> String {
        self.uploads += 1;
        format!("b{content_id}/{}", self.uploads)
    }

    /// Counts the pastes that reference this content: all except tombstones and decremented rows.
    pub(crate) fn reference_count(&self, content_id: u8) -> i32 {
        let counts = |paste: &&Paste| match paste.status {
            Status::Deleted => false,
            // Without a claim row, the row's own reference is all there is to go by.
            Status::UnknownClaim(_) => true,
            Status::InProgress(Some(claim)) => !self.claims[&claim].lease.decremented,
            _ => true,
        };
        let references = self
            .pastes
            .values()
            .filter(|paste| paste.content_id == Some(content_id))
            .filter(counts);
        i32::try_from(references.count()).expect("a small scenario")
    }

    /// A paste that the fleet has not claimed references this content.
    pub(crate) fn is_needed(&self, content_id: u8) -> bool {
        let unclaimed = [Status::NotExpired, Status::InProgress(None)];
        let needs = |paste: &Paste| {
            unclaimed.contains(&paste.status) && paste.content_id == Some(content_id)
        };
        self.pastes.values().any(needs)
    }

    /// The owner's trigger refuses the DELETE of this paste.
    pub(crate) fn trigger_protects(&self, code: &str) -> bool {
        let number = code.strip_prefix('p').and_then(|number| number.parse::<u32>().ok());
        self.owner.is_some() && number.is_some_and(|number| number % 4 == 3)
    }
}

/// Returns the square of the attempts in seconds, up to the cap.
pub(crate) fn backoff(attempts: i16) -> When {
    let attempts = i64::from(attempts);
    When::Later((attempts * attempts).min(BACKOFF_CAP))
}
