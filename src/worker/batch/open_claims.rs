//! The claims that this process has open, and whether each of them makes progress.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The claims of one worker. The heartbeat reads it, the batches write it.
#[derive(Debug, Default)]
pub struct OpenClaims {
    claims: Mutex<HashMap<i64, Open>>,
    /// Claims of this worker that may be open in Postgres without being listed here: their answer
    /// is not known (yet), or they could not be released.
    unconfirmed: AtomicUsize,
}

#[derive(Debug)]
struct Open {
    /// A batch that is wedged past this is no longer beaten: one stuck batch must not hide behind
    /// a chatty process.
    progress_until: Instant,
    last_heartbeat: Instant,
    /// Lost by this process' own clock: it may still be open in Postgres.
    silent: bool,
    lost: CancellationToken,
}

impl OpenClaims {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Open>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more claim may be open that is not listed.
    pub fn add_unconfirmed(&self) {
        self.unconfirmed.fetch_add(1, Ordering::AcqRel);
    }

    /// What became of so many of them is known.
    pub fn confirm(&self, claims: usize) {
        let rest = |all: usize| Some(all.saturating_sub(claims));
        let _ = self.unconfirmed.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest);
    }

    /// How many there may be.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.load(Ordering::Acquire)
    }

    /// Opens a claim that was taken at `claimed`. The token is cancelled when the claim is lost.
    pub fn insert(&self, claim: i64, claimed: Instant, allowed: Duration) -> CancellationToken {
        let lost = CancellationToken::new();
        let progress_until = Instant::now() + allowed;
        let open =
            Open { progress_until, last_heartbeat: claimed, silent: false, lost: lost.clone() };
        self.lock().insert(claim, open);
        lost
    }

    /// The claim entered a new phase that may take so long.
    pub fn progress(&self, claim: i64, allowed: Duration) {
        if let Some(open) = self.lock().get_mut(&claim) {
            open.progress_until = Instant::now() + allowed;
        }
    }

    /// Closes a claim. True: it was dropped for want of a heartbeat.
    pub fn remove(&self, claim: i64) -> bool {
        self.lock().remove(&claim).is_some_and(|open| open.silent)
    }

    pub fn ids(&self) -> Vec<i64> {
        self.lock().keys().copied().collect()
    }

    /// The claims that are within their phase's deadline.
    pub fn progressing(&self) -> Vec<i64> {
        let now = Instant::now();
        let claims = self.lock();
        let alive = claims.iter().filter(|(_, open)| open.progress_until > now);
        alive.map(|(id, _)| *id).collect()
    }

    /// Postgres took a heartbeat that was sent at `sent`.
    pub fn heartbeat_accepted(&self, claim: i64, sent: Instant) {
        if let Some(open) = self.lock().get_mut(&claim) {
            open.last_heartbeat = sent;
        }
    }

    /// Somebody reset the claim: its batch stops at once.
    pub fn lose(&self, claim: i64) {
        if let Some(open) = self.lock().get(&claim) {
            open.lost.cancel();
        }
    }

    /// A worker that could not heartbeat for `stuck_after` stops touching its claims.
    pub fn lose_expired(&self, stuck_after: Duration) -> usize {
        let mut claims = self.lock();
        let silent = claims.values_mut().filter(|open| {
            open.last_heartbeat.elapsed() >= stuck_after && !open.lost.is_cancelled()
        });
        let drop = |open: &mut Open| {
            open.silent = true;
            open.lost.cancel();
        };
        silent.map(drop).count()
    }
}
