//! Giving a claim back: what a worker cannot finish costs no row an attempt and stays with nobody.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{PgError, Worker};
use crate::{
    backoff::backoff,
    claim::{
        Fence, StepError,
        reset::{LockedClaim, Reset, ResetReason, reset},
    },
    failpoint,
    postgres::{answered, describe, describe_pool, is_permanent},
};

const OWN_CLAIM: &str = sql!("claim/lock_own");
const TURN: &str = sql!("claim/lock_worker");
const UNKNOWN: &str = sql!("claim/of_worker");
/// What cannot be released within this is left until the dependencies are available again, or until the
/// end of the run: see [`Worker::leave_nothing_claimed`].
const TIMEOUT: Duration = Duration::from_secs(10);

impl Worker {
    /// Gives the claim back, unless it was finished or reset already.
    pub async fn release(&self, fence: Fence, why: &str) -> Result<Reset, StepError> {
        self.release_because(fence, ResetReason::Released(why)).await
    }

    /// After a batch broke off (a panic): its rows count an attempt, as if the worker had died.
    pub(in crate::worker) async fn release_panicked(
        &self,
        fence: Fence,
    ) -> Result<Reset, StepError> {
        self.release_because(fence, ResetReason::LeaseExpired).await
    }

    pub(in crate::worker) async fn release_because(
        &self,
        fence: Fence,
        why: ResetReason<'_>,
    ) -> Result<Reset, StepError> {
        let give_up = Instant::now() + TIMEOUT;
        let mut tries = 0;
        loop {
            let (reason, permanent) = match answered(self.try_release(fence, why)).await {
                Ok(reset) => {
                    let (claim, rows, reason) = (fence.claim, reset.rows, why.text());
                    info!(claim, rows, "released claim {claim}: {rows} pastes ({reason})");
                    return Ok(reset);
                }
                Err(error) => {
                    let permanent =
                        matches!(&error, PgError::Backend(error) if is_permanent(error));
                    (describe_pool(&error), permanent)
                }
            };
            if permanent {
                return Err(StepError::Permanent(reason));
            }
            if Instant::now() >= give_up {
                return Err(StepError::Transient(reason));
            }
            tokio::time::sleep(backoff(tries)).await;
            tries += 1;
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

    /// After a claim whose answer was lost, or one that could not be released: waits for the old
    /// backend, then releases every open claim of this worker that it does not know of.
    pub async fn release_unconfirmed(&self) -> Result<usize, StepError> {
        // A batch that ends meanwhile may add another one, which this look does not see.
        let looked_for = self.open.unconfirmed();
        let unknown = answered(self.unknown_claims()).await;
        let unknown = unknown.map_err(|error| match &error {
            PgError::Backend(cause) if is_permanent(cause) => StepError::Permanent(describe(cause)),
            error => StepError::Transient(describe_pool(error)),
        })?;
        for claim in &unknown {
            warn!(claim, "claim {claim} is open, but nobody works on it: releasing it");
            let fence = Fence { claim: *claim, worker: self.id };
            let reset = self.release(fence, "left behind by its worker").await?;
            self.tally.released(&reset);
        }
        self.open.confirm(looked_for);
        Ok(unknown.len())
    }

    /// At the end of a run. A claim that stays open can only be freed by the watchdog, after
    /// `stuck_after`: so as long as Postgres is away, the process stays and tries, unless it is
    /// asked to stop. The error says why it gave up.
    pub(in crate::worker) async fn leave_nothing_claimed(&self) -> Result<(), String> {
        let stuck_after = self.settings.watchdog.stuck_after;
        let (mut give_up, mut tries) = (Instant::now() + stuck_after, 0);
        let stop = &self.shutdown.stop;
        loop {
            let Err(failure) = self.release_unconfirmed().await else {
                return Ok(());
            };
            let reason = failure.to_string();
            if self.open.unconfirmed() == 0 {
                return Ok(());
            }
            if tries == 0 {
                warn!(reason, "staying until the open claims can be released: {reason}");
            }
            if stop.is_cancelled() {
                give_up = give_up.min(Instant::now() + self.settings.worker.grace_period);
            }
            let permanent = matches!(failure, StepError::Permanent(_));
            if permanent || Instant::now() >= give_up {
                let frees = humantime::format_duration(stuck_after);
                return Err(format!(
                    "open claims could not be released: {reason}; \
                     the watchdog frees them after {frees} (watchdog.stuck_after)"
                ));
            }
            tokio::select! {
                () = tokio::time::sleep(backoff(tries)) => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
            tries += 1;
        }
    }

    async fn unknown_claims(&self) -> Result<Vec<i64>, PgError> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        transaction.query(TURN, &[&self.id.to_string()]).await?;
        let rows = transaction.query(UNKNOWN, &[&self.id, &self.open.ids()]).await?;
        transaction.commit().await?;
        Ok(rows.into_iter().map(|row| row.get("id")).collect())
    }
}
