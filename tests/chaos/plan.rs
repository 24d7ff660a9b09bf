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
    /// Beats that do not arrive, while all else does and S3 takes its time: workers go on with
    /// claims that a watchdog has reset.
    SwallowBeats,
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
}

/// All of them.
pub const KINDS: [Kind; 25] = [
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
    Kind::SwallowBeats,
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
    Kind::SwallowBeats,
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
    pub faults: Vec<Planned>,
    pub writers_seed: u64,
    pub readers_seed: u64,
}

impl Plan {
    /// Each kind once, in a shuffled order, within the first part of the soak; then at random.
    pub fn new(seed: u64, length: Duration) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (writers_seed, readers_seed) = (rng.u64(..), rng.u64(..));
        let mut first = KINDS.to_vec();
        rng.shuffle(&mut first);
        let mut first = first.into_iter();
        let mean_ms = 1500.min(length.as_millis() as u64 * 2 / 3 / KINDS.len() as u64).max(1);
        let (mut at, mut faults) = (Duration::ZERO, Vec::new());
        loop {
            at += Duration::from_millis(rng.u64(mean_ms / 3..=mean_ms * 5 / 3));
            if at >= length {
                return Self { faults, writers_seed, readers_seed };
            }
            let kind = first.next().unwrap_or_else(|| draw(&mut rng));
            let lasts = Duration::from_millis(rng.u64(500..3500));
            faults.push(Planned { at, kind, lasts, seed: rng.u64(..) });
        }
    }

    /// Tells two plans apart at a glance.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(format!("{self:?}"))[..6])
    }
}

fn draw(rng: &mut fastrand::Rng) -> Kind {
    let all = KINDS.len() + FAVOURITES.len();
    let place = rng.usize(..all);
    KINDS.get(place).copied().unwrap_or_else(|| FAVOURITES[place - KINDS.len()])
}

/// The promise behind `--seed`, checked whenever a soak starts.
pub fn assert_reproducible(seed: u64, length: Duration) {
    assert_eq!(Plan::new(seed, length), Plan::new(seed, length), "the same seed, the same plan");
    let other = Plan::new(seed.wrapping_add(1), length);
    assert_ne!(Plan::new(seed, length).digest(), other.digest(), "another seed, another plan");
}
