//! Stories: a random graph of pastes and bodies, and what then happens to it, in which order.
//!
//! Actions name claims and pastes by small numbers that are taken modulo what is there, so that
//! every story can be played and a shorter one can be tried.

use std::fmt;

/// Bodies that pastes of the graph share.
pub const BODIES: u8 = 5;
/// Workers that claim; the last one buries its pastes as tombstones.
pub const WORKERS: usize = 3;
/// Short codes that are put; the first ones are taken by the graph.
pub const CODES: u8 = 24;

/// One random story.
#[derive(Clone)]
pub struct Story {
    pub graph: Vec<Planted>,
    /// What is wrong with the counts from the start, by body. Empty: nothing.
    pub drift: Vec<Drift>,
    /// Keeps some pastes from being deleted.
    pub owner: Option<Owner>,
    pub scenes: Vec<Vec<Action>>,
}

/// What the trigger of the tables' owner does when some pastes (see `Reference::owner_keeps`) are
/// deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// An ordinary exception.
    Raises,
    /// As a constraint would.
    Violates,
    /// Nothing happens, and nobody is told.
    Swallows,
}

/// A paste that is there when the story begins.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    pub body: u8,
    pub kind: Kind,
}

/// What a planted paste has gone through already.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Expired,
    ExpiresLater,
    NeverExpires,
    /// Its worker fell expired so often; it is due again.
    CameBack(i16),
    /// The same, and it still waits.
    BacksOff(i16),
    /// Its reference is decremented, its object could not be deleted.
    Owes(i16),
    Tombstone,
    /// In progress without a claim: something else marked it.
    Stray,
    /// In progress without a claim: it waits for its content row.
    Deferred,
    /// In progress for hours, by a claim of this number that nobody remembers.
    Forgotten(i64),
}

/// How a body's count differs from the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    Off(i32),
    NoRow,
}

/// When a paste that is put expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Past,
    Future,
    Never,
}

/// What somebody does.
#[derive(Debug, Clone)]
pub enum Action {
    Claim {
        worker: usize,
        size: u32,
        /// Other claims are open in this process.
        busy: bool,
        /// Nothing due before this worker's last claim.
        marked: bool,
    },
    /// The next step of the claim in the usual order; a zombie goes on as if nothing had happened.
    Next(usize),
    Decrement(usize),
    DeleteObjects(usize),
    /// Before the decrement, too: the fence must refuse it.
    Finish(usize),
    Release(usize),
    /// Its worker does not heartbeat any more.
    ExpireLease(usize),
    /// The watchdog looks.
    Sweep,
    /// Both, at once.
    Lapse(usize),
    EndBackoff,
    Put {
        code: u8,
        body: u8,
        until: Until,
    },
    /// Of a paste that is there, or not (any more).
    Extend {
        paste: usize,
        until: Until,
        /// By a statement of the writer's own, which leaves the retry columns alone.
        plainly: bool,
    },
    ExpireNow(usize),
    /// From now on S3 refuses these keys.
    Refuse(Keys),
    /// Something else deletes a row.
    Remove(usize),
    /// Somebody puts a row back that is being deleted.
    PutBack(usize),
    /// Somebody ends a claim by hand.
    EndByHand {
        claim: usize,
        finished: bool,
    },
    /// The claims are truncated.
    ForgetClaims,
    /// While another transaction holds a body: a claim is released, or a sweep looks.
    ReleaseHeld(usize, u8),
    SweepHeld(u8),
    /// The same sweep, after a worker fell expired.
    LapseHeld(usize, u8),
}

/// Which keys S3 refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    None,
    OfBody(u8),
    All,
}

impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, planted) in self.graph.iter().enumerate() {
            writeln!(f, "  p{n} holds body {}: {:?}", planted.body, planted.kind)?;
        }
        for (body, drift) in self.drift.iter().enumerate().filter(|(_, d)| **d != Drift::Off(0)) {
            writeln!(f, "  the count of body {body} is wrong: {drift:?}")?;
        }
        if let Some(owner) = self.owner {
            writeln!(f, "  the owner keeps p3, p7, p11, …: {owner:?}")?;
        }
        for (n, scene) in self.scenes.iter().enumerate() {
            writeln!(f, "  {}. {scene:?}", n + 1)?;
        }
        Ok(())
    }
}
