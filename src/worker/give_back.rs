//! Giving a claim back: what a worker cannot finish costs no row an attempt and stays with nobody.

use tokio::time::Instant;
use tracing::info;

use super::{PgError, Worker, claim::describe_pool, settle::STEP_PATIENCE};
use crate::{
    backoff::backoff,
    claim::{Fence, StepError},
    watchdog::reset::{LockedClaim, Reset, Why, reset},
};

const OWN_CLAIM: &str = include_str!("../../sql/queries/own_claim.sql");

impl Worker {
    /// Gives the claim back, unless it was finished or reset already. Tries for a while: a claim
    /// that stays behind can only be freed by the watchdog.
    pub async fn give_back(&self, fence: Fence, why: &str) -> Result<Reset, StepError> {
        let give_up = Instant::now() + STEP_PATIENCE;
        let mut tries = 0;
        loop {
            let reason = match self.try_give_back(fence, why).await {
                Ok(reset) => {
                    let (claim, rows) = (fence.claim, reset.rows);
                    info!(
                        claim,
                        rows, why, "gave back claim {claim}: {rows} pastes ({why})"
                    );
                    return Ok(reset);
                }
                Err(error) => describe_pool(&error),
            };
            if Instant::now() >= give_up {
                return Err(StepError::Surroundings(reason));
            }
            tokio::time::sleep(backoff(tries)).await;
            tries += 1;
        }
    }

    async fn try_give_back(&self, fence: Fence, why: &str) -> Result<Reset, PgError> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let own = transaction
            .query_opt(OWN_CLAIM, &[&fence.claim, &fence.worker])
            .await?;
        let Some(claim) = own.as_ref().map(LockedClaim::from) else {
            return Ok(Reset::default());
        };
        let done = reset(&transaction, &self.settings, &claim, Why::GivenBack(why)).await?;
        transaction.commit().await?;
        Ok(done)
    }
}
