//! The worker: drains the expired pastes, batch by batch.
//!
//! * `run`: the drain loop: when to claim, when to wait, when to stop.
//! * `batch`: the steps of one batch, one file each: `lock`, `claim`, `decrement`,
//!   `delete_objects`, `evict`, `finish`.
//! * `report`: what a run reports of itself.

pub mod batch;
pub mod cli;
pub mod report;
pub mod run;
pub mod schedule;
mod start;

use std::sync::Arc;

use deadpool_postgres::Pool;
use tokio_postgres::Client;
use uuid::Uuid;

use self::{
    batch::{
        OpenClaims, Steps,
        claim::{ClaimError, Wanted},
        delete_objects::ObjectsDeleted,
        finish::Finished,
        heartbeat::Heartbeat,
    },
    report::{PhaseTimes, RunRecord, Tally},
};
use crate::{
    claim::{Claim, Decremented, Fence, StepError, reset::Reset},
    config::Settings,
    objects::Objects,
    shutdown::Shutdown,
};

/// One worker process: its identity, its connections, its open claims.
pub struct Worker {
    /// Chosen at process start; half of every fence.
    pub id: Uuid,
    /// The settings, after the flags of the command line.
    pub settings: Arc<Settings>,
    /// The claims whose leases the heartbeat keeps.
    pub open: Arc<OpenClaims>,
    /// What the batches of its run have done so far.
    pub tally: Arc<Tally>,
    shutdown: Shutdown,
    steps: Steps,
    heartbeat: Heartbeat,
    record: Arc<RunRecord>,
    pool: Pool,
    objects: Objects,
}

/// The steps of a batch, one by one.
impl Worker {
    /// Takes the lock, claims due pastes, releases the lock. `None`: there is nothing to claim, or
    /// the run must stop.
    pub async fn claim(&self, wanted: Wanted) -> Result<Option<Claim>, ClaimError> {
        self.steps.claim.run(wanted).await
    }

    /// Decrements the references of the claim's pastes, exactly once.
    pub async fn decrement(&self, claim: &Claim) -> Result<Decremented, StepError> {
        self.steps.decrement.run(claim).await
    }

    /// Deletes the objects that lost their last reference, and those pending from earlier attempts.
    pub async fn delete_objects(
        &self,
        claim: &Claim,
        decremented: &Decremented,
    ) -> Result<ObjectsDeleted, StepError> {
        self.steps.delete_objects.run(claim, decremented).await
    }

    /// Removes the claim's pastes from the read cache.
    pub async fn evict(&self, claim: &Claim) {
        self.steps.evict.run(claim).await;
    }

    /// Deletes the paste rows and closes the claim.
    pub async fn finish(
        &self,
        claim: &Claim,
        objects: &ObjectsDeleted,
        times: &PhaseTimes,
    ) -> Result<Finished, StepError> {
        self.steps.finish.run(claim, objects, times).await
    }

    /// Releases the claim, unless it was finished or reset already. Costs its rows no attempt.
    pub async fn release(&self, fence: Fence, reason: &str) -> Result<Reset, StepError> {
        self.steps.release.release(fence, reason).await
    }

    /// Releases every open claim of this worker that it does not know of. Returns their number.
    pub async fn release_unconfirmed(&self) -> Result<usize, StepError> {
        self.steps.release.unconfirmed().await
    }

    /// Sends one heartbeat for the open claims that make progress.
    pub async fn heartbeat(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        self.heartbeat.once(client).await
    }

    /// The key of the lock around claims.
    pub fn lock_key(&self) -> &str {
        self.steps.claim.lock_key()
    }
}
