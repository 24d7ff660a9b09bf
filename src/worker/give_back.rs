//! Giving a claim back: what a worker cannot finish costs no row an attempt and stays with nobody.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{PgError, Worker};
use crate::{
    backoff::backoff,
    claim::{Fence, StepError},
    failpoint,
    postgres::{answered, describe, describe_pool, is_hopeless},
    watchdog::reset::{LockedClaim, Reset, Why, reset},
};

const OWN_CLAIM: &str = include_str!("../../sql/queries/own_claim.sql");
const TURN: &str = include_str!("../../sql/queries/claim_turn.sql");
const UNKNOWN: &str = include_str!("../../sql/queries/claims_of_worker.sql");
/// What cannot be given back within this is left until the surroundings answer again, or until the
/// end of the run: see [`Worker::leave_nothing_claimed`].
const PATIENCE: Duration = Duration::from_secs(10);

impl Worker {
    /// Gives the claim back, unless it was finished or reset already.
    pub async fn give_back(&self, fence: Fence, why: &str) -> Result<Reset, StepError> {
        self.hand_in(fence, Why::GivenBack(why)).await
    }

    /// After a batch broke off (a panic): its rows count an attempt, as if the worker had died.
    pub(super) async fn hand_in_broken(&self, fence: Fence) -> Result<Reset, StepError> {
        self.hand_in(fence, Why::WorkerSilent).await
    }

    pub(super) async fn hand_in(&self, fence: Fence, why: Why<'_>) -> Result<Reset, StepError> {
        let give_up = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            let (reason, hopeless) = match answered(self.try_give_back(fence, why)).await {
                Ok(reset) => {
                    let (claim, rows, reason) = (fence.claim, reset.rows, why.reason());
                    info!(claim, rows, "gave back claim {claim}: {rows} pastes ({reason})");
                    return Ok(reset);
                }
                Err(error) => {
                    let hopeless = matches!(&error, PgError::Backend(error) if is_hopeless(error));
                    (describe_pool(&error), hopeless)
                }
            };
            if hopeless {
                return Err(StepError::Hopeless(reason));
            }
            if Instant::now() >= give_up {
                return Err(StepError::Surroundings(reason));
            }
            tokio::time::sleep(backoff(tries)).await;
            tries += 1;
        }
    }

    async fn try_give_back(&self, fence: Fence, why: Why<'_>) -> Result<Reset, PgError> {
        let mut client = self.pool.get().await?;
        let mut transaction = client.transaction().await?;
        let own = transaction.query_opt(OWN_CLAIM, &[&fence.claim, &fence.worker]).await?;
        let Some(claim) = own.as_ref().map(LockedClaim::from) else {
            return Ok(Reset::default());
        };
        failpoint::reached("give_back.before");
        let done = reset(&mut transaction, &self.settings, &claim, why).await?;
        transaction.commit().await?;
        failpoint::reached("give_back.committed");
        Ok(done)
    }

    /// After a claim whose answer was lost, or one that could not be given back: waits for the old
    /// backend, then gives back every open claim of this worker that it does not know of.
    pub async fn give_back_unknown(&self) -> Result<usize, StepError> {
        // A batch that ends meanwhile may add another one, which this look does not see.
        let looked_for = self.open.out_of_sight();
        let unknown = answered(self.unknown_claims()).await;
        let unknown = unknown.map_err(|error| match &error {
            PgError::Backend(cause) if is_hopeless(cause) => StepError::Hopeless(describe(cause)),
            error => StepError::Surroundings(describe_pool(error)),
        })?;
        for claim in &unknown {
            warn!(claim, "claim {claim} is open, but nobody works on it: giving it back");
            let fence = Fence { claim: *claim, worker: self.id };
            let reset = self.give_back(fence, "left behind by its worker").await?;
            self.tally.given_back(&reset);
        }
        self.open.regain_sight(looked_for);
        Ok(unknown.len())
    }

    /// At the end of a run. A claim that stays open can only be freed by the watchdog, after
    /// `stuck_after`: so as long as Postgres is away, the process stays and tries, unless it is
    /// asked to stop. The error says why it gave up.
    pub(super) async fn leave_nothing_claimed(&self) -> Result<(), String> {
        let stuck_after = self.settings.watchdog.stuck_after;
        let (mut give_up, mut tries) = (Instant::now() + stuck_after, 0);
        let stop = &self.shutdown.stop;
        loop {
            let Err(failure) = self.give_back_unknown().await else {
                return Ok(());
            };
            let reason = failure.to_string();
            if self.open.out_of_sight() == 0 {
                return Ok(());
            }
            if tries == 0 {
                warn!(reason, "staying until the open claims can be given back: {reason}");
            }
            if stop.is_cancelled() {
                give_up = give_up.min(Instant::now() + self.settings.worker.grace_period);
            }
            let hopeless = matches!(failure, StepError::Hopeless(_));
            if hopeless || Instant::now() >= give_up {
                let frees = humantime::format_duration(stuck_after);
                return Err(format!(
                    "open claims could not be given back: {reason}; \
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
