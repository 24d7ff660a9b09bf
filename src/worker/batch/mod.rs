//! One claimed batch on its way through the steps.

pub mod claim;
pub mod decrement;
pub mod delete_objects;
pub mod evict;
pub mod finish;
pub mod lock;

mod fail_rows;
mod heartbeat;
pub mod open_claims;
pub mod release;
mod retry;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use self::decrement::MissingContent;
use self::{delete_objects::ObjectsGone, finish::Finished, retry::STEP_TIMEOUT};
pub use self::{lock::Lock, open_claims::OpenClaims};
use super::{
    PgError, Worker,
    report::{PhaseTimes, summary::ms},
};
use crate::{
    claim::{Claim, Decremented, StepError, reset::ResetReason},
    failpoint, telemetry,
};

/// On top of a step's own deadline, before its claim is no longer beaten.
pub(in crate::worker) const SLACK: Duration = Duration::from_secs(15);

/// How a batch ended, as far as the run loop must know.
#[derive(Debug)]
pub(in crate::worker) enum BatchEnd {
    Finished {
        rows: usize,
    },
    /// Somebody has reset it: nothing to do.
    Lost,
    /// Released because of the dependencies: stop claiming until they answer.
    Transient(String),
    /// Released because of something that only a person can fix: stop.
    Permanent(String),
    /// Released because every paste of it failed: the pastes, or the database?
    EveryPasteFails(String),
    /// Released because suspiciously much would go: stop.
    Brake(String),
}

impl Worker {
    /// Opens the claim for the heartbeat; the steps follow in [`Worker::carry_out`].
    pub(in crate::worker) fn open(&self, claim: &Claim) -> CancellationToken {
        self.open.insert(claim.fence.claim, claim.requested_at, STEP_TIMEOUT + SLACK)
    }

    /// Takes the batch through its steps, unless it is lost or the process must go.
    pub(in crate::worker) async fn carry_out(
        self: Arc<Self>,
        claim: Claim,
        lost: CancellationToken,
    ) -> BatchEnd {
        let claim_time = claim.requested_at.elapsed();
        let ended = tokio::select! {
            ended = self.steps(&claim, claim_time) => ended,
            () = lost.cancelled() => Err(crate::claim::LeaseLost(claim.fence).into()),
            () = self.shutdown.abandon.cancelled() => {
                Err(StepError::Transient("asked to stop".into()))
            }
        };
        let (end, still_open) = self.end_batch(&claim, ended).await;
        // In this order: a look in between finds the claim, and does no harm.
        let silent = self.open.remove(claim.fence.claim);
        if silent || still_open {
            self.open.add_unconfirmed();
        }
        match silent {
            true => BatchEnd::Transient("no heartbeat reached Postgres for stuck_after".into()),
            false => end,
        }
    }

    /// How many rows it deleted.
    async fn steps(&self, claim: &Claim, claim_time: Duration) -> Result<usize, StepError> {
        let id = claim.fence.claim;
        let mut times = PhaseTimes {
            claim: claim_time,
            lock_wait: claim.lock_wait,
            lock_hold: claim.lock_hold,
            ..PhaseTimes::default()
        };
        let started = Instant::now();
        failpoint::holds(claim.pastes.iter().map(|paste| &*paste.short_code));

        let decremented = self.decrement(claim).await?;
        times.decrement = started.elapsed();
        self.tally.drifted(decremented.drift);
        self.tally.failed(decremented.failed.iter().map(|(code, _)| code.clone()));

        self.open.progress(id, self.delete_allowed());
        let objects = self.delete_objects(claim, &decremented).await?;
        times.delete = started.elapsed() - times.decrement;

        self.open.progress(id, SLACK);
        self.evict(claim).await;
        times.evict = started.elapsed() - times.decrement - times.delete;

        self.open.progress(id, STEP_TIMEOUT + SLACK);
        let finished = self.finish(claim, &objects, &times).await?;
        times.finish = started.elapsed() - times.decrement - times.delete - times.evict;

        self.tally.failed(finished.failed.iter().map(|(code, _)| code.clone()));
        self.tally.gone(finished.gone);
        self.tally.finished(finished.rows, objects.deleted, decremented.bytes, &times);
        if !telemetry::bar_is_shown() {
            report(claim, &finished, &objects, &decremented, &times);
        }
        Ok(usize::try_from(finished.rows).unwrap_or(usize::MAX))
    }

    /// How the batch ended, and whether its claim may still be open.
    async fn end_batch(&self, claim: &Claim, ended: Result<usize, StepError>) -> (BatchEnd, bool) {
        match ended {
            Ok(rows) => (BatchEnd::Finished { rows }, false),
            Err(StepError::LeaseLost(lost)) => {
                warn!(claim = claim.fence.claim, "{lost}");
                self.tally.lost();
                (BatchEnd::Lost, false)
            }
            Err(StepError::Transient(reason)) => {
                let still_open = !self.release_or_warn(claim, ResetReason::Released(&reason)).await;
                (BatchEnd::Transient(reason), still_open)
            }
            Err(StepError::Permanent(reason)) => {
                let still_open = !self.release_or_warn(claim, ResetReason::Released(&reason)).await;
                (BatchEnd::Permanent(reason), still_open)
            }
            Err(StepError::Database(fault)) => {
                let reason = fault.to_string();
                let why = ResetReason::AllFailed(&fault.error, &fault.pastes);
                let still_open = !self.release_or_warn(claim, why).await;
                self.tally.failed(fault.pastes.into_iter().map(|(code, _)| code));
                (BatchEnd::EveryPasteFails(reason), still_open)
            }
            Err(StepError::Brake(reason)) => {
                let still_open = !self.release_or_warn(claim, ResetReason::Brake(&reason)).await;
                (BatchEnd::Brake(reason), still_open)
            }
        }
    }

    async fn release_or_warn(&self, claim: &Claim, why: ResetReason<'_>) -> bool {
        let id = claim.fence.claim;
        self.open.progress(id, STEP_TIMEOUT + SLACK);
        let released = self.release_because(claim.fence, why).await;
        match &released {
            Ok(reset) => self.tally.released(reset),
            Err(failure) => warn!(claim = id, "claim {id} could not be released yet: {failure}"),
        }
        released.is_ok()
    }
}

/// One event per batch: fields for filtering, a sentence for reading. `elapsed_ms` is everything after
/// the claim.
fn report(
    claim: &Claim,
    finished: &Finished,
    gone: &ObjectsGone,
    decremented: &Decremented,
    times: &PhaseTimes,
) {
    let (id, rows, objects) = (claim.fence.claim, finished.rows, gone.deleted);
    info!(
        claim = id,
        rows,
        objects,
        bytes = decremented.bytes,
        elapsed_ms = ms(times.decrement + times.delete + times.evict + times.finish),
        lock_wait_ms = ms(times.lock_wait),
        claim_ms = ms(times.claim),
        decrement_ms = ms(times.decrement),
        delete_ms = ms(times.delete),
        evict_ms = ms(times.evict),
        finish_ms = ms(times.finish),
        "finished claim {id}: {rows} pastes, {objects} objects"
    );
}
