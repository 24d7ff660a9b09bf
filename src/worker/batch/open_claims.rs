//! The claims that this process has open, and whether each of them makes progress.

use std::{
    collections::HashMap,
    sync::{
        MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::mutex::Mutex;

/// The claims of one worker. The heartbeat reads it, the batches write it.
#[derive(Debug, Default)]
pub struct OpenClaims {
    claims: Mutex<HashMap<i64, Open>>,
    /// Claims of this worker that may be open in Postgres without being listed here: their commit was not
    /// answered (yet), or they could not be released.
    unconfirmed: AtomicUsize,
}

#[derive(Debug)]
struct Open {
    /// A batch that is stuck past this gets no more heartbeats: it must not be kept alive by the other
    /// batches of its process.
    progress_until: Instant,
    last_heartbeat: Instant,
    /// Its lease expired by this process' own clock: it may still be open in Postgres.
    expired: bool,
    lost: CancellationToken,
}

impl OpenClaims {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Open>> {
        self.claims.lock()
    }

    /// One more claim may be open that is not listed.
    pub fn add_unconfirmed(&self) {
        self.unconfirmed.fetch_add(1, Ordering::AcqRel);
    }

    /// Records that the outcome of this many unconfirmed claims is known.
    pub fn confirm(&self, claims: usize) {
        let rest = |all: usize| Some(all.saturating_sub(claims));
        let _ = self.unconfirmed.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest);
    }

    /// Returns the number of unconfirmed claims, at most.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed.load(Ordering::Acquire)
    }

    /// Adds a claim that was taken at `claimed`. The token is cancelled when its lease is lost.
    pub fn insert(&self, claim: i64, claimed: Instant, allowed: Duration) -> CancellationToken {
        let lost = CancellationToken::new();
        let progress_until = Instant::now() + allowed;
        let open =
            Open { progress_until, last_heartbeat: claimed, expired: false, lost: lost.clone() };
        self.lock().insert(claim, open);
        lost
    }

    /// The claim entered a new phase that may take as long as `allowed`.
    pub fn progress(&self, claim: i64, allowed: Duration) {
        if let Some(open) = self.lock().get_mut(&claim) {
            open.progress_until = Instant::now() + allowed;
        }
    }

    /// Removes a claim. True: its lease had expired by our own clock.
    pub fn remove(&self, claim: i64) -> bool {
        self.lock().remove(&claim).is_some_and(|open| open.expired)
    }

    /// Returns all claims that are listed, including those whose lease is lost.
    pub fn ids(&self) -> Vec<i64> {
        self.lock().keys().copied().collect()
    }

    /// Returns the claims that are within their phase's deadline.
    pub fn progressing(&self) -> Vec<i64> {
        let now = Instant::now();
        let claims = self.lock();
        let alive = claims.iter().filter(|(_, open)| open.progress_until > now);
        alive.map(|(id, _)| *id).collect()
    }

    /// Postgres accepted a heartbeat that was sent at `sent`.
    pub fn heartbeat_accepted(&self, claim: i64, sent: Instant) {
        if let Some(open) = self.lock().get_mut(&claim) {
            open.last_heartbeat = sent;
        }
    }

    /// The claim was reset: its batch stops at once.
    pub fn lose(&self, claim: i64) {
        if let Some(open) = self.lock().get(&claim) {
            open.lost.cancel();
        }
    }

    /// Stops the batches that had no heartbeat for `stuck_after`. Returns their number.
    pub fn lose_expired(&self, stuck_after: Duration) -> usize {
        let mut claims = self.lock();
        let expired = claims.values_mut().filter(|open| {
            open.last_heartbeat.elapsed() >= stuck_after && !open.lost.is_cancelled()
        });
        let drop = |open: &mut Open| {
            open.expired = true;
            open.lost.cancel();
        };
        expired.map(drop).count()
    }
}
