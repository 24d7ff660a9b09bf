//! Releasing a claim that cannot be finished: its rows are due again, and no row pays an attempt.

use std::{
    collections::HashSet,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use deadpool_postgres::Pool;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::{OpenClaims, Tally};
use crate::{
    backoff::Retries,
    claim::{
        Fence, StepError,
        reset::{LockedClaim, Reset, ResetReason, reset},
    },
    config::Settings,
    failpoint,
    format::counted,
    mutex::Mutex,
    postgres::{PgError, answered},
};

const OWN_CLAIM: &str = sql!("claim/lock_own");
const LOCK_WORKER: &str = sql!("claim/lock_worker");
const OPEN_CLAIMS: &str = sql!("claim/of_worker");
/// A claim that cannot be released within this is left until the dependencies are available again,
/// or until the end of the run: see [`Release::everything`].
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why claims stay open at the end of a run.
#[derive(thiserror::Error, Debug)]
#[error(
    "could not release the open claims: {cause}; the watchdog resets them after {} \
     (watchdog.stuck_after)",
    humantime::format_duration(*.stuck_after)
)]
pub(in crate::worker) struct LeftOpen {
    cause: StepError,
    stuck_after: Duration,
}

/// Releases claims of one worker.
pub(in crate::worker) struct Release {
    id: Uuid,
    pool: Pool,
    settings: Arc<Settings>,
    open: Arc<OpenClaims>,
    tally: Arc<Tally>,
    /// Claims that the safety brake released, or tried to release.
    braked: Mutex<HashSet<i64>>,
}

impl Release {
    pub(crate) fn new(
        id: Uuid,
        pool: Pool,
        settings: Arc<Settings>,
        open: Arc<OpenClaims>,
        tally: Arc<Tally>,
    ) -> Self {
        Self { id, pool, settings, open, tally, braked: Mutex::default() }
    }

    /// Releases the claim, unless it was finished or reset already. Costs its rows no attempt.
    pub(crate) async fn release(&self, fence: Fence, reason: &str) -> Result<Reset, StepError> {
        self.because(fence, ResetReason::Released(reason)).await
    }

    /// After a batch panicked: its rows count an attempt, as if the worker had died.
    pub(crate) async fn panicked(&self, fence: Fence) -> Result<Reset, StepError> {
        self.because(fence, ResetReason::LeaseExpired).await
    }

    /// Retries for up to 10 s while Postgres is unavailable.
    pub(crate) async fn because(
        &self,
        fence: Fence,
        why: ResetReason<'_>,
    ) -> Result<Reset, StepError> {
        if let ResetReason::Brake(_) = why {
            self.braked().insert(fence.claim);
        }
        let mut retries = Retries::within(TIMEOUT);
        loop {
            let error = match answered(self.try_release(fence, why)).await {
                Ok(reset) => {
                    // None: the claim was finished or reset already.
                    if reset.claims > 0 {
                        let (claim, rows, reason) = (fence.claim, reset.rows, why.text());
                        let pastes = counted(rows, "paste");
                        info!(
                            claim,
                            rows, "released claim {claim}: {pastes} due again; reason: {reason}"
                        );
                    }
                    return Ok(reset);
                }
                Err(error) => error,
            };
            if error.is_permanent() || retries.are_over() {
                return Err(error.into());
            }
            retries.pause().await;
        }
    }

    async fn try_release(&self, fence: Fence, why: ResetReason<'_>) -> Result<Reset, PgError> {
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let own = transaction.query_opt(OWN_CLAIM, &[&fence.claim, &fence.worker]).await?;
        let Some(claim) = own.as_ref().map(LockedClaim::from) else {
            return Ok(Reset::default());
        };
        failpoint::reached("release.before");
        let done = reset(&mut transaction, &self.settings, &claim, why).await?;
        transaction.commit().await?;
        failpoint::reached("release.committed");
        Ok(done)
    }

    /// Releases unconfirmed claims: those whose commit was not answered, or that could not be released.
    /// Waits for the old backend, then releases every open claim of this worker that is not in
    /// [`OpenClaims`]. Returns their number.
    pub(crate) async fn unconfirmed(&self) -> Result<usize, StepError> {
        // A batch that ends meanwhile may add another one, which this query does not see.
        let searched_for = self.open.unconfirmed();
        let unknown = answered(self.unknown_claims()).await?;
        for claim in &unknown {
            warn!(
                claim,
                "releasing unconfirmed claim {claim}: it is open, but no batch of this worker has \
                 it"
            );
            let fence = Fence { claim: *claim, worker: self.id };
            let reason = "unconfirmed: open, but no batch of its worker had it";
            let why = match self.braked().contains(claim) {
                true => ResetReason::Brake(reason),
                false => ResetReason::Released(reason),
            };
            let reset = self.because(fence, why).await?;
            self.tally.released(&reset);
        }
        self.open.confirm(searched_for);
        Ok(unknown.len())
    }

    /// Releases what is left at the end of a run. A claim that stays open can only be reset by the watchdog,
    /// after `stuck_after`. So while Postgres is unavailable the process stays and retries, but
    /// after a signal only for `worker.grace_period`.
    pub(crate) async fn everything(&self, stop: &CancellationToken) -> Result<(), LeftOpen> {
        let stuck_after = self.settings.watchdog.stuck_after;
        let mut retries = Retries::within(stuck_after);
        loop {
            let Err(cause) = self.unconfirmed().await else {
                return Ok(());
            };
            if self.open.unconfirmed() == 0 {
                return Ok(());
            }
            if retries.none_yet() {
                let longest = humantime::format_duration(stuck_after);
                let grace = humantime::format_duration(self.settings.worker.grace_period);
                warn!(
                    "waiting to release open claims before exit, for at most {longest} ({grace} \
                     after SIGTERM): {cause}"
                );
            }
            if stop.is_cancelled() {
                retries.shorten_to(self.settings.worker.grace_period);
            }
            if matches!(cause, StepError::Permanent(_)) || retries.are_over() {
                return Err(LeftOpen { cause, stuck_after });
            }
            tokio::select! {
                () = retries.pause() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }

    fn braked(&self) -> MutexGuard<'_, HashSet<i64>> {
        self.braked.lock()
    }

    async fn unknown_claims(&self) -> Result<Vec<i64>, PgError> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        transaction.query(LOCK_WORKER, &[&self.id.to_string()]).await?;
        let rows = transaction.query(OPEN_CLAIMS, &[&self.id, &self.open.ids()]).await?;
        transaction.commit().await?;
        Ok(rows.into_iter().map(|row| row.get("id")).collect())
    }
}
