//! While Postgres, Redis or S3 is unavailable: claim nothing, check again and again, go on when all are
//! available, and give up after `worker.outage_timeout`.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    backoff::backoff,
    config::WhenUnavailable,
    worker::{Worker, batch::claim::ClaimError},
};

/// The current outage, if there is one.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// What failed and has not worked since.
    reason: Option<String>,
    /// Since when no batch was finished although something failed.
    since: Option<Instant>,
    /// The size of the largest batch that failed since then.
    rows: usize,
    checks: u32,
    /// The reason that was logged last: each is logged once.
    logged: Option<String>,
}

impl Outage {
    /// A claim or a check failed with a transient error.
    pub fn begin(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// A batch of this many rows failed with a transient error.
    pub fn batch_failed(&mut self, reason: String, rows: usize) {
        self.rows = self.rows.max(rows);
        self.begin(reason);
    }

    /// A batch was finished. A single paste that succeeds does not prove that a batch would.
    pub fn batch_finished(&mut self, rows: usize) {
        if rows * 2 >= self.rows {
            (self.since, self.checks, self.rows) = (None, 0, 0);
        }
    }

    /// A pause on purpose does not count towards the timeout.
    pub fn exclude(&mut self, pause: Duration) {
        self.since = self.since.map(|since| since + pause);
    }

    /// Returns what is unavailable.
    pub fn reason(&self, worker: &Worker) -> Option<String> {
        let store = || worker.objects.failing().map(|error| error.to_string());
        self.reason.clone().or_else(store)
    }

    /// Returns how long to wait before the next check; the error: the timeout is over. The timeout counts
    /// from the first error to the next finished batch: a dependency that answers a probe but fails every
    /// batch does not work.
    pub fn next_check(&mut self, reason: &str, timeout: Duration) -> Result<Duration, String> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            let timeout = humantime::format_duration(timeout);
            return Err(format!("gave up after {timeout} without a finished batch: {reason}"));
        }
        let pause = backoff(self.checks + 2).min(timeout);
        if self.logged.as_deref() != Some(reason) {
            warn!("paused claims: {reason}; retrying in {pause:.1?}");
            self.logged = Some(reason.into());
        }
        self.checks += 1;
        Ok(pause)
    }

    /// Notes the result of a check.
    pub fn checked(&mut self, worker: &Worker, result: Result<(), String>) {
        self.reason = result.err();
        if self.reason(worker).is_none() {
            let checked = match worker.settings.lock.when_unavailable {
                WhenUnavailable::Proceed => "Postgres and S3",
                WhenUnavailable::Wait => "Postgres, Redis and S3",
            };
            info!("resumed claims: {checked} are available again");
            self.logged = None;
        }
    }
}

/// Checks that Postgres, S3 and, if the settings wait for it, Redis are available. Also releases
/// unconfirmed claims.
pub(super) async fn check_dependencies(worker: &Worker) -> Result<(), String> {
    worker.release_unconfirmed().await.map_err(|error| error.to_string())?;
    if worker.settings.lock.when_unavailable == WhenUnavailable::Wait {
        let probed = worker.steps.claim.probe_lock().await;
        probed.map_err(|reason| ClaimError::NoLock(reason).to_string())?;
    }
    worker.objects.probe().await.map_err(|error| error.to_string())
}
