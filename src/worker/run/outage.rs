//! While Postgres, Redis or S3 is unavailable: claim nothing, check again and again, go on when all are
//! available, and give up after `worker.outage_timeout`.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    backoff::backoff,
    claim::StepError,
    config::WhenUnavailable,
    objects::ObjectsError,
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

/// The timeout of an outage is over.
#[derive(thiserror::Error, Debug)]
#[error("gave up after {} without a finished batch: {reason}", humantime::format_duration(*.timeout))]
pub(super) struct GaveUp {
    timeout: Duration,
    reason: String,
}

/// What a check found to be unavailable.
#[derive(thiserror::Error, Debug)]
#[error(transparent)]
pub(super) enum Unavailable {
    Postgres(#[from] StepError),
    Redis(#[from] ClaimError),
    S3(#[from] ObjectsError),
}

impl Outage {
    /// A claim or a check failed with a transient error.
    pub(super) fn begin(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// A batch of this many rows failed with a transient error.
    pub(super) fn batch_failed(&mut self, reason: String, rows: usize) {
        self.rows = self.rows.max(rows);
        self.begin(reason);
    }

    /// A batch was finished. A single paste that succeeds does not prove that a batch would.
    pub(super) fn batch_finished(&mut self, rows: usize) {
        if rows * 2 >= self.rows {
            (self.since, self.checks, self.rows) = (None, 0, 0);
        }
    }

    /// A pause on purpose does not count towards the timeout.
    pub(super) fn exclude(&mut self, pause: Duration) {
        self.since = self.since.map(|since| since + pause);
    }

    /// Returns what is unavailable.
    pub(super) fn reason(&self, worker: &Worker) -> Option<String> {
        let store = || worker.objects.failing().map(|error| error.to_string());
        self.reason.clone().or_else(store)
    }

    /// Returns how long to wait before the next check. The timeout counts
    /// from the first error to the next finished batch: a dependency that answers a probe but fails every
    /// batch does not work.
    pub(super) fn next_check(
        &mut self,
        reason: &str,
        timeout: Duration,
    ) -> Result<Duration, GaveUp> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= timeout {
            return Err(GaveUp { timeout, reason: reason.into() });
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
    pub(super) fn checked(&mut self, worker: &Worker, result: Result<(), Unavailable>) {
        self.reason = result.err().map(|error| error.to_string());
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
pub(super) async fn check_dependencies(worker: &Worker) -> Result<(), Unavailable> {
    worker.release_unconfirmed().await?;
    if worker.settings.lock.when_unavailable == WhenUnavailable::Wait {
        worker.steps.claim.probe_lock().await.map_err(ClaimError::NoLock)?;
    }
    Ok(worker.objects.probe().await?)
}
