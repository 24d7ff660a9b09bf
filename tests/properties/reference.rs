//! The reference: what the tables and the bucket must say, in plain maps. It knows no SQL, no S3
//! and nothing of the product's code; what its steps do is in `verbs`.

use std::collections::{BTreeMap, BTreeSet};

use super::story::Owner;

/// Failures before a paste becomes a dead letter, in the workers' settings.
pub const MAX_ATTEMPTS: i16 = 4;
/// The batch size in the settings; claims ask for any size.
pub const BATCH_SIZE: u32 = 20;
/// The longest backoff in seconds; low enough to be reached.
pub const BACKOFF_CAP: i64 = 8;
/// Model time of what happens by Postgres' own clock, later than all planted times.
const NOW: i64 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    NotExpired,
    /// In progress, by this claim or by something else.
    InProgress(Option<i64>),
    /// In progress, by a claim of this number that nobody remembers.
    Stale(i64),
    Deleted,
}

/// A time of a row. Past times are seconds of the story's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Unset,
    Past(i64),
    /// Not before so many seconds after it was set.
    Later(i64),
    /// A dead letter.
    Infinity,
}

/// What `last_error` speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    Nobody,
    Worker,
    S3,
    /// The owner's trigger.
    Owner,
    /// A transaction that holds its content row.
    Locked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paste {
    pub status: Status,
    pub body: Option<u8>,
    pub pending_s3_key: Option<String>,
    pub attempts: i16,
    pub expires: When,
    pub retry: When,
    pub blame: Blame,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub key: String,
    pub ref_count: i32,
}

/// What a claim row says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lease {
    pub worker: usize,
    pub rows_claimed: usize,
    /// Open, and without a heartbeat for hours.
    pub expired: bool,
    pub decremented: bool,
    pub finished: bool,
    pub reset: bool,
    /// The paste that owes each unreferenced key. After its end: those that could not take it over.
    pub pending_owners: BTreeMap<String, String>,
    pub rows_deleted: Option<u64>,
}

/// A paste as its claimer knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub body: Option<u8>,
    pub pending_s3_key: Option<String>,
    pub attempts: i16,
}

/// A claim: its row, and what its worker has in hand.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    pub lease: Lease,
    pub taken: BTreeMap<String, Taken>,
    pub last_due: i64,
    /// The bodies that were stored when it was made; one that is stored again is another.
    pub stored: BTreeSet<String>,
    pub bytes: i64,
    /// The unreferenced keys with their pending_owners, once its worker has decremented.
    pub in_hand: Option<BTreeMap<String, String>>,
    /// The keys that S3 refused and who owes them, once its worker has deleted the others.
    pub refused: Option<BTreeMap<String, String>>,
}

impl Claim {
    pub fn is_open(&self) -> bool {
        !self.lease.finished && !self.lease.reset
    }
}

/// The whole world, as it must be.
#[derive(Debug, Clone, Default)]
pub struct Reference {
    pub pastes: BTreeMap<String, Paste>,
    pub content: BTreeMap<u8, Content>,
    pub objects: BTreeSet<String>,
    pub claims: BTreeMap<i64, Claim>,
    /// S3 refuses keys with this text.
    pub refusing: Option<String>,
    /// Claims whose lock somebody holds just now: a sweep passes them by.
    pub locked: BTreeSet<i64>,
    /// The body whose content row somebody holds just now.
    pub held: Option<u8>,
    /// What the owner's trigger does to the DELETE of some pastes.
    pub owner: Option<Owner>,
    /// The rows that really owe each key, for where the product may choose.
    pub chosen: BTreeMap<String, BTreeSet<String>>,
    /// Uploads so far: no key is used twice.
    pub uploads: u32,
    pub clock: i64,
}

/// What can be seen of it from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    pub pastes: BTreeMap<String, Paste>,
    pub content: BTreeMap<u8, Content>,
    pub objects: BTreeSet<String>,
    pub claims: BTreeMap<i64, Lease>,
    /// What is due, in the order in which it is due.
    pub queue: Vec<String>,
}

impl Paste {
    pub fn new(body: Option<u8>, expires: When) -> Self {
        Self {
            status: Status::NotExpired,
            body,
            pending_s3_key: None,
            attempts: 0,
            expires,
            retry: When::Unset,
            blame: Blame::Nobody,
        }
    }

    /// When it may be claimed, if that time has come.
    pub fn due(&self) -> Option<i64> {
        match (self.status, self.expires, self.retry) {
            (Status::NotExpired, When::Past(at), When::Unset) => Some(at),
            (Status::NotExpired, When::Past(_), When::Past(at)) => Some(at),
            _ => None,
        }
    }

    pub fn has_expired(&self) -> bool {
        matches!(self.expires, When::Past(_))
    }

    /// It is whole, and nobody has begun to delete it.
    pub fn can_be_changed(&self) -> bool {
        self.status == Status::NotExpired && self.body.is_some()
    }
}

/// Only whether a time has come can be compared.
fn seen(when: When) -> When {
    match when {
        When::Past(_) => When::Past(0),
        When::Later(_) => When::Later(0),
        when => when,
    }
}

impl Reference {
    pub fn state(&self) -> State {
        let flat = |paste: &Paste| Paste {
            expires: seen(paste.expires),
            retry: seen(paste.retry),
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

    /// What is due, the longest overdue first.
    pub fn queue(&self) -> Vec<(i64, String)> {
        let due = |(code, paste): (&String, &Paste)| Some((paste.due()?, code.clone()));
        let mut queue: Vec<_> = self.pastes.iter().filter_map(due).collect();
        queue.sort();
        queue
    }

    /// Keys that only a claim remembers which is over: their objects stay until their rows come back.
    pub fn kept_keys(&self) -> BTreeSet<String> {
        let going = self.pastes.values().filter(|paste| paste.has_expired());
        let owed: BTreeSet<&String> =
            going.filter_map(|paste| paste.pending_s3_key.as_ref()).collect();
        let ended = self.claims.values().filter(|claim| !claim.is_open());
        let kept = ended.flat_map(|claim| claim.lease.pending_owners.keys());
        kept.filter(|key| !owed.contains(key)).cloned().collect()
    }

    /// The next moment of Postgres' own clock.
    pub fn tick(&mut self) -> i64 {
        self.clock += 1;
        NOW + self.clock
    }

    /// A key that was never used before.
    pub fn fresh_key(&mut self, body: u8) -> String {
        self.uploads += 1;
        format!("b{body}/{}", self.uploads)
    }

    /// How many pastes hold this body: all but those that are gone or on their way out.
    pub fn holders(&self, body: u8) -> i32 {
        let holds = |paste: &&Paste| match paste.status {
            Status::Deleted => false,
            // Of a claim that nobody remembers nobody knows better.
            Status::Stale(_) => true,
            Status::InProgress(Some(claim)) => !self.claims[&claim].lease.decremented,
            _ => true,
        };
        let holders = self.pastes.values().filter(|paste| paste.body == Some(body)).filter(holds);
        i32::try_from(holders.count()).expect("a small story")
    }

    /// A paste that the fleet has not claimed holds it.
    pub fn is_needed(&self, body: u8) -> bool {
        let unclaimed = [Status::NotExpired, Status::InProgress(None)];
        let needs = |paste: &Paste| unclaimed.contains(&paste.status) && paste.body == Some(body);
        self.pastes.values().any(needs)
    }

    /// The owner's trigger does not let this paste be deleted.
    pub fn owner_keeps(&self, code: &str) -> bool {
        let number = code.strip_prefix('p').and_then(|number| number.parse::<u32>().ok());
        self.owner.is_some() && number.is_some_and(|number| number % 4 == 3)
    }
}

/// The square of the attempts in seconds, up to the cap.
pub fn backoff(attempts: i16) -> When {
    let attempts = i64::from(attempts);
    When::Later((attempts * attempts).min(BACKOFF_CAP))
}
