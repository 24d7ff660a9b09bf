//! The faults of a soak and their times, all decided before it starts, by the seed alone.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::support::hex;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL.
    KillWorker,
    /// SIGSTOP, and SIGCONT when the watchdog has long taken it for dead.
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
    /// All of the fleet's connections, on their way.
    CutConnections,
    SlowPostgres,
    /// Commits that are carried out and not heard of.
    LoseCommitAnswers,
    /// Commits that do not arrive.
    CutBeforeCommits,
    /// Heartbeats that do not arrive, while all else does and S3 takes its time: workers go on with
    /// claims that a watchdog has reset.
    SwallowHeartbeats,
    /// SIGKILL and a new start.
    KillS3,
    SlowDown,
    ServerErrors,
    /// Errors for single keys, in an answer with status 200.
    RefuseKeys,
    /// Status 200, an error as its body.
    ErrorInBody,
    /// Time out, and are carried out later.
    LateDeletes,
    RepeatedDeletes,
    SlowS3,
    /// Answers that end in the middle.
    CutS3,
    /// The owner of the tables forgets a transaction that holds content, pastes, or a row that refers
    /// to a paste.
    OwnerLocks,
    /// The same, as a prepared transaction: it outlives its session, and the server's.
    OwnerPrepares,
    /// Gives pastes other short codes.
    OwnerRenames,
    /// Loads pastes with COPY.
    OwnerLoads,
    /// VACUUM FULL or REINDEX.
    OwnerRewrites,
}

/// What only a soak with a foreign owner has.
pub const OWNERS: [Kind; 5] = [
    Kind::OwnerLocks,
    Kind::OwnerPrepares,
    Kind::OwnerRenames,
    Kind::OwnerLoads,
    Kind::OwnerRewrites,
];

/// Those of every soak.
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

/// Those that a fleet meets most: drawn more often after each kind had its turn.
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
pub struct Planned {
    pub at: Duration,
    pub kind: Kind,
    pub lasts: Duration,
    /// Decides the details: whom it hits, how hard, by which code.
    pub seed: u64,
}

/// All faults of a soak, in order.
#[derive(Debug, PartialEq)]
pub struct Plan {
    /// All that are drawn from.
    pub kinds: Vec<Kind>,
    pub faults: Vec<Planned>,
    pub writers_seed: u64,
    pub readers_seed: u64,
}

impl Plan {
    /// Each kind once, in a shuffled order, within the first part of the soak; then at random.
    pub fn new(seed: u64, length: Duration, owner: bool) -> Self {
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

    /// Tells two plans apart at a glance.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(format!("{self:?}"))[..6])
    }
}

/// The owner is a favourite where there is one.
fn draw(rng: &mut fastrand::Rng, kinds: &[Kind], owners: &[Kind]) -> Kind {
    let all = kinds.iter().chain(&FAVOURITES).chain(owners);
    let all: Vec<Kind> = all.copied().collect();
    all[rng.usize(..all.len())]
}

/// The promise behind `--seed`, checked whenever a soak starts.
pub fn assert_reproducible(seed: u64, length: Duration, owner: bool) {
    let plan = |seed| Plan::new(seed, length, owner);
    assert_eq!(plan(seed), plan(seed), "the same seed, the same plan");
    let other = plan(seed.wrapping_add(1));
    assert_ne!(plan(seed).digest(), other.digest(), "another seed, another plan");
}
