//! The faults of a soak and their times, all determined by the seed before it starts.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::support::hex;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// SIGKILL.
    KillWorker,
    /// SIGSTOP, and SIGCONT long after its leases have expired.
    FreezeWorker,
    /// SIGTERM.
    StopWorker,
    KillWatchdog,
    FreezeWatchdog,
    KillWriter,
    /// SIGKILL and a new start, empty.
    KillRedis,
    /// SIGSTOP and SIGCONT.
    FreezeRedis,
    /// FLUSHALL.
    FlushRedis,
    /// In immediate mode: a crash, and recovery from the log.
    RestartPostgres,
    /// pg_terminate_backend on some of the sessions.
    KillConnections,
    /// All connections of the fleet and the writers, cut at the proxy.
    CutConnections,
    SlowPostgres,
    /// Commits that are carried out, but whose answer is lost.
    LoseCommitAnswers,
    /// Commits that do not arrive.
    CutBeforeCommits,
    /// Heartbeats that do not arrive, while everything else does and S3 is slow: workers continue
    /// with claims that a watchdog has reset.
    SwallowHeartbeats,
    /// SIGKILL and a new start.
    KillS3,
    SlowDown,
    ServerErrors,
    /// Errors for single keys, in an answer with status 200.
    RefuseKeys,
    /// Status 200, an error as its body.
    ErrorInBody,
    /// Deletes that time out and are carried out later.
    LateDeletes,
    RepeatedDeletes,
    SlowS3,
    /// Answers that end in the middle.
    CutS3,
    /// The table owner leaves a transaction open that locks content, pastes, or a row that
    /// references a paste.
    OwnerLocks,
    /// The same, as a prepared transaction: it outlives its session, and the server's.
    OwnerPrepares,
    /// The table owner changes short codes.
    OwnerRenames,
    /// The table owner loads pastes with COPY.
    OwnerLoads,
    /// The table owner runs VACUUM FULL or REINDEX.
    OwnerRewrites,
}

/// The faults that only a soak with a table owner has.
pub(crate) const OWNERS: [Kind; 5] = [
    Kind::OwnerLocks,
    Kind::OwnerPrepares,
    Kind::OwnerRenames,
    Kind::OwnerLoads,
    Kind::OwnerRewrites,
];

/// The faults of every soak.
const KINDS: [Kind; 25] = [
    Kind::KillWorker,
    Kind::FreezeWorker,
    Kind::StopWorker,
    Kind::KillWatchdog,
    Kind::FreezeWatchdog,
    Kind::KillWriter,
    Kind::KillRedis,
    Kind::FreezeRedis,
    Kind::FlushRedis,
    Kind::RestartPostgres,
    Kind::KillConnections,
    Kind::CutConnections,
    Kind::SlowPostgres,
    Kind::LoseCommitAnswers,
    Kind::CutBeforeCommits,
    Kind::SwallowHeartbeats,
    Kind::KillS3,
    Kind::SlowDown,
    Kind::ServerErrors,
    Kind::RefuseKeys,
    Kind::ErrorInBody,
    Kind::LateDeletes,
    Kind::RepeatedDeletes,
    Kind::SlowS3,
    Kind::CutS3,
];

/// The most common faults in production: drawn more often after each kind has occurred once.
const FAVOURITES: [Kind; 8] = [
    Kind::KillWorker,
    Kind::FreezeWorker,
    Kind::FreezeWorker,
    Kind::KillWriter,
    Kind::RestartPostgres,
    Kind::LoseCommitAnswers,
    Kind::SwallowHeartbeats,
    Kind::LateDeletes,
];

/// One fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    pub at: Duration,
    pub kind: Kind,
    pub lasts: Duration,
    /// Determines the details: which process it hits, how hard, with which error code.
    pub seed: u64,
}

/// All faults of a soak, in order.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// The kinds that occur in this soak.
    pub kinds: Vec<Kind>,
    pub faults: Vec<Planned>,
    pub writers_seed: u64,
    pub readers_seed: u64,
}

impl Plan {
    /// Plans each kind once, in a shuffled order, in the first part of the soak; then random kinds.
    pub(crate) fn new(seed: u64, length: Duration, owner: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (writers_seed, readers_seed) = (rng.u64(..), rng.u64(..));
        let owners: &[Kind] = if owner { &OWNERS } else { &[] };
        let kinds = [&KINDS[..], owners].concat();
        let mut first = kinds.clone();
        rng.shuffle(&mut first);
        let mut first = first.into_iter();
        let mean_ms = 1500.min(length.as_millis() as u64 * 2 / 3 / kinds.len() as u64).max(1);
        let (mut at, mut faults) = (Duration::ZERO, Vec::new());
        loop {
            at += Duration::from_millis(rng.u64(mean_ms / 3..=mean_ms * 5 / 3));
            if at >= length {
                return Self { kinds, faults, writers_seed, readers_seed };
            }
            let kind = first.next().unwrap_or_else(|| draw(&mut rng, &kinds, owners));
            let lasts = Duration::from_millis(rng.u64(500..3500));
            faults.push(Planned { at, kind, lasts, seed: rng.u64(..) });
        }
    }

    /// Returns a short digest that identifies the plan.
    pub(crate) fn digest(&self) -> String {
        hex(&Sha256::digest(format!("{self:?}"))[..6])
    }
}

/// Draws a kind; the owner's faults count among the favourites.
fn draw(rng: &mut fastrand::Rng, kinds: &[Kind], owners: &[Kind]) -> Kind {
    let all = kinds.iter().chain(&FAVOURITES).chain(owners);
    let all: Vec<Kind> = all.copied().collect();
    all[rng.usize(..all.len())]
}

/// Asserts what `--seed` promises: the same seed gives the same plan.
pub(crate) fn assert_reproducible(seed: u64, length: Duration, owner: bool) {
    let plan = |seed| Plan::new(seed, length, owner);
    assert_eq!(plan(seed), plan(seed), "the same seed, the same plan");
    let other = plan(seed.wrapping_add(1));
    assert_ne!(plan(seed).digest(), other.digest(), "another seed, another plan");
}
