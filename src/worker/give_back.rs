//! Giving a claim back: what a worker cannot finish costs no row an attempt and stays with nobody.

use tokio::time::Instant;
use tracing::{info, warn};

use super::{PgError, Worker, claim::describe_pool, settle::STEP_PATIENCE};
use crate::{
    backoff::backoff,
    claim::{Fence, StepError},
    failpoint,
    postgres::{answered, is_hopeless},
    watchdog::reset::{LockedClaim, Reset, Why, reset},
};

const OWN_CLAIM: &str = include_str!("../../sql/queries/own_claim.sql");
const TURN: &str = include_str!("../../sql/queries/claim_turn.sql");
const UNKNOWN: &str = include_str!("../../sql/queries/claims_of_worker.sql");

impl Worker {
    /// Gives the claim back, unless it was finished or reset already. Tries for a while: a claim
    /// that stays behind can only be freed by the watchdog.
    pub async fn give_back(&self, fence: Fence, why: &str) -> Result<Reset, StepError> {
        self.hand_in(fence, Why::GivenBack(why)).await
    }

    /// After a batch broke off (a panic): its rows count an attempt, as if the worker had died.
    pub(super) async fn hand_in_broken(&self, fence: Fence) -> Result<Reset, StepError> {
        self.hand_in(fence, Why::WorkerSilent).await
    }

    async fn hand_in(&self, fence: Fence, why: Why<'_>) -> Result<Reset, StepError> {
        let give_up = Instant::now() + STEP_PATIENCE;
        let mut tries = 0;
        loop {
            let (reason, hopeless) = match answered(self.try_give_back(fence, why)).await {
                Ok(reset) => {
                    let (claim, rows) = (fence.claim, reset.rows);
                    info!(claim, rows, ?why, "gave back claim {claim}: {rows} pastes");
                    return Ok(reset);
                }
                Err(error) => {
                    let hopeless = matches!(&error, PgError::Backend(error) if is_hopeless(error));
                    (describe_pool(&error), hopeless)
                }
            };
            if hopeless || Instant::now() >= give_up {
                return Err(StepError::Surroundings(reason));
            }
            tokio::time::sleep(backoff(tries)).await;
            tries += 1;
        }
    }

    async fn try_give_back(&self, fence: Fence, why: Why<'_>) -> Result<Reset, PgError> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let own = transaction.query_opt(OWN_CLAIM, &[&fence.claim, &fence.worker]).await?;
        let Some(claim) = own.as_ref().map(LockedClaim::from) else {
            return Ok(Reset::default());
        };
        failpoint::reached("give_back.before");
        let done = reset(&transaction, &self.settings, &claim, why).await?;
        transaction.commit().await?;
        failpoint::reached("give_back.committed");
        Ok(done)
    }

    /// After a claim whose answer was lost: waits for the old backend, then gives back every open
    /// claim of this worker that it does not know of.
    pub async fn give_back_unknown(&self) -> Result<usize, PgError> {
        let unknown = answered(self.unknown_claims()).await?;
        for claim in &unknown {
            warn!(claim, "claim {claim} was committed but its answer was lost: giving it back");
            let fence = Fence { claim: *claim, worker: self.id };
            if let Err(error) = self.give_back(fence, "claim answer lost").await {
                info!(claim, "claim {claim} is left to the watchdog: {error}");
            }
        }
        Ok(unknown.len())
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
