//! Scenarios: random initial pastes that share content, and the actions that follow, in order.
//!
//! Actions name claims and pastes by small numbers, taken modulo what exists. Every scenario can
//! therefore be run, and so can every shortened one.

use std::fmt;

/// Content rows that the initial pastes share.
pub(crate) const CONTENT_ROWS: u8 = 5;
/// Workers that claim; the last one keeps tombstones of its pastes.
pub(crate) const WORKERS: usize = 3;
/// Short codes of puts; the initial pastes have the first ones.
pub(crate) const CODES: u8 = 24;

/// One random scenario.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub initial: Vec<InitialPaste>,
    /// The drift of each initial count, by content. Empty: no drift.
    pub drift: Vec<Drift>,
    /// A trigger that keeps some pastes from being deleted.
    pub owner: Option<OwnerTrigger>,
    pub rounds: Vec<Vec<Action>>,
}

/// What the table owner's trigger does when some pastes are deleted (see
/// `Reference::trigger_protects`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerTrigger {
    /// Raises an ordinary exception.
    Raises,
    /// Raises a check violation, as a constraint would.
    Violates,
    /// Suppresses the DELETE without an error.
    Swallows,
}

/// A paste that exists when the scenario begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitialPaste {
    pub content_id: u8,
    pub kind: Kind,
}

/// The history of an initial paste.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Expired,
    ExpiresLater,
    NeverExpires,
    /// Reset this many times because its worker's lease expired; due again.
    WasReset(i16),
    /// The same, and still backing off.
    BacksOff(i16),
    /// Its reference is decremented, its object delete is pending after this many failures.
    PendingDelete(i16),
    Tombstone,
    /// In progress without a claim: marked by something other than the fleet.
    MarkedByOther,
    /// In progress without a claim: waiting until its content row is unlocked.
    Deferred,
    /// In progress for hours, under a claim id that has no claim row any more.
    UnknownClaim(i64),
}

/// How a `ref_count` differs from the number of references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drift {
    Off(i32),
    NoRow,
}

/// When a paste that is put expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Past,
    Future,
    Never,
}

/// One action of the fleet, a writer, the operator, S3 or the owner of the tables.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Claim {
        worker: usize,
        size: u32,
        /// Other claims are open in this process.
        busy: bool,
        /// Starts at the low-water mark of this worker's last claim.
        marked: bool,
    },
    /// The next step of the claim in the usual order; a zombie continues as if nothing had
    /// happened.
    Next(usize),
    Decrement(usize),
    DeleteObjects(usize),
    /// Also before the decrement: the fence must refuse that.
    Finish(usize),
    Release(usize),
    /// The claim gets no more heartbeats.
    ExpireLease(usize),
    /// The watchdog sweeps.
    Sweep,
    /// A lease expires, and the watchdog sweeps.
    ExpireAndSweep(usize),
    EndBackoff,
    Put {
        code: u8,
        content_id: u8,
        until: Until,
    },
    /// Extends a paste that may not exist (any more).
    Extend {
        paste: usize,
        until: Until,
        /// With a plain UPDATE instead of `paste_extend`, which leaves the retry columns alone.
        plain_update: bool,
    },
    ExpireNow(usize),
    /// From now on S3 refuses these keys.
    Refuse(Keys),
    /// Something other than the fleet deletes a row.
    DeleteRow(usize),
    /// An operator resets a row in progress by hand.
    ResetByHand(usize),
    /// An operator ends a claim by hand.
    EndByHand {
        claim: usize,
        finished: bool,
    },
    /// `deletion_claims` is truncated.
    TruncateClaims,
    /// A claim is released while another transaction locks this content row.
    ReleaseWhileLocked(usize, u8),
    /// The watchdog sweeps while another transaction locks this content row.
    SweepWhileLocked(u8),
    /// The same sweep, after a lease expired.
    ExpireAndSweepWhileLocked(usize, u8),
}

/// Which keys S3 refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    None,
    OfContent(u8),
    All,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, initial_paste) in self.initial.iter().enumerate() {
            writeln!(
                f,
                "  p{n} references content {}: {:?}",
                initial_paste.content_id, initial_paste.kind
            )?;
        }
        for (content_id, drift) in
            self.drift.iter().enumerate().filter(|(_, d)| **d != Drift::Off(0))
        {
            writeln!(f, "  the ref_count of content {content_id} is wrong: {drift:?}")?;
        }
        if let Some(owner) = self.owner {
            writeln!(f, "  the owner's trigger protects p3, p7, p11, …: {owner:?}")?;
        }
        for (n, round) in self.rounds.iter().enumerate() {
            writeln!(f, "  {}. {round:?}", n + 1)?;
        }
        Ok(())
    }
}
