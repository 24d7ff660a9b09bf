//! One claimed batch on its way through the steps.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    PhaseTimes, Worker, delete_objects::ObjectsGone, finish::Finished, settle::STEP_PATIENCE,
    summary::ms,
};
use crate::{
    claim::{Claim, Released, StepError},
    failpoint, telemetry,
    watchdog::reset::Why,
};

/// On top of a step's own deadline, before its claim is no longer beaten.
pub(super) const SLACK: Duration = Duration::from_secs(15);

/// How a batch ended, as far as the run loop must know.
#[derive(Debug)]
pub(super) enum BatchEnd {
    Finished {
        rows: usize,
    },
    /// Somebody has reset it: nothing to do.
    Lost,
    /// Given back because of the surroundings: stop claiming until they answer.
    Troubled(String),
    /// Given back because of something that only a person can mend: stop.
    Hopeless(String),
    /// Given back because every paste of it failed: the pastes, or the database?
    EveryPasteFails(String),
    /// Given back because suspiciously much would go: stop.
    Brake(String),
}

impl Worker {
    /// Opens the claim for the heartbeat; the steps follow in [`Worker::carry_out`].
    pub(super) fn open(&self, claim: &Claim) -> CancellationToken {
        self.open.insert(claim.fence.claim, claim.asked_at, STEP_PATIENCE + SLACK)
    }

    /// Takes the batch through its steps, unless it is lost or the process must go.
    pub(super) async fn carry_out(
        self: Arc<Self>,
        claim: Claim,
        lost: CancellationToken,
    ) -> BatchEnd {
        let claim_time = claim.asked_at.elapsed();
        let ended = tokio::select! {
            ended = self.steps(&claim, claim_time) => ended,
            () = lost.cancelled() => Err(crate::claim::LostClaim(claim.fence).into()),
            () = self.shutdown.abandon.cancelled() => {
                Err(StepError::Surroundings("asked to stop".into()))
            }
        };
        let (end, still_open) = self.settle_end(&claim, ended).await;
        // In this order: a look in between finds the claim, and does no harm.
        let silent = self.open.remove(claim.fence.claim);
        if silent || still_open {
            self.open.lose_sight();
        }
        match silent {
            true => BatchEnd::Troubled("no beat reached Postgres for stuck_after".into()),
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
        failpoint::holds(&claim.pastes);

        let released = self.release(claim).await?;
        times.release = started.elapsed();
        self.tally.drifted(released.drift);
        self.tally.failed(released.detached.iter().map(|(code, _)| code.clone()));

        self.open.progress(id, self.delete_allowed());
        let objects = self.delete_objects(claim, &released).await?;
        times.delete = started.elapsed() - times.release;

        self.open.progress(id, SLACK);
        self.evict(claim).await;
        times.evict = started.elapsed() - times.release - times.delete;

        self.open.progress(id, STEP_PATIENCE + SLACK);
        let finished = self.finish(claim, &objects, &times).await?;
        times.finish = started.elapsed() - times.release - times.delete - times.evict;

        self.tally.failed(finished.failed.iter().map(|(code, _)| code.clone()));
        self.tally.gone(finished.gone);
        self.tally.finished(finished.rows, objects.deleted, released.bytes, &times);
        if !telemetry::bar_is_shown() {
            report(claim, &finished, &objects, &released, &times);
        }
        Ok(usize::try_from(finished.rows).unwrap_or(usize::MAX))
    }

    /// How the batch ended, and whether its claim may still be open.
    async fn settle_end(&self, claim: &Claim, ended: Result<usize, StepError>) -> (BatchEnd, bool) {
        match ended {
            Ok(rows) => (BatchEnd::Finished { rows }, false),
            Err(StepError::Lost(lost)) => {
                warn!(claim = claim.fence.claim, "{lost}");
                self.tally.lost();
                (BatchEnd::Lost, false)
            }
            Err(StepError::Surroundings(reason)) => {
                let still_open = !self.give_back_or_say(claim, Why::GivenBack(&reason)).await;
                (BatchEnd::Troubled(reason), still_open)
            }
            Err(StepError::Hopeless(reason)) => {
                let still_open = !self.give_back_or_say(claim, Why::GivenBack(&reason)).await;
                (BatchEnd::Hopeless(reason), still_open)
            }
            Err(StepError::Database(fault)) => {
                let reason = fault.to_string();
                let why = Why::Failing(&fault.error, &fault.pastes);
                let still_open = !self.give_back_or_say(claim, why).await;
                self.tally.failed(fault.pastes.into_iter().map(|(code, _)| code));
                (BatchEnd::EveryPasteFails(reason), still_open)
            }
            Err(StepError::Brake(reason)) => {
                let still_open = !self.give_back_or_say(claim, Why::Braked(&reason)).await;
                (BatchEnd::Brake(reason), still_open)
            }
        }
    }

    async fn give_back_or_say(&self, claim: &Claim, why: Why<'_>) -> bool {
        let id = claim.fence.claim;
        self.open.progress(id, STEP_PATIENCE + SLACK);
        let given_back = self.hand_in(claim.fence, why).await;
        match &given_back {
            Ok(reset) => self.tally.given_back(reset),
            Err(failure) => warn!(claim = id, "claim {id} could not be given back yet: {failure}"),
        }
        given_back.is_ok()
    }
}

/// One event per batch: fields for filtering, a sentence for reading. `elapsed_ms` is everything after
/// the claim.
fn report(
    claim: &Claim,
    finished: &Finished,
    gone: &ObjectsGone,
    released: &Released,
    times: &PhaseTimes,
) {
    let (id, rows, objects) = (claim.fence.claim, finished.rows, gone.deleted);
    info!(
        claim = id,
        rows,
        objects,
        bytes = released.bytes,
        elapsed_ms = ms(times.release + times.delete + times.evict + times.finish),
        lock_wait_ms = ms(times.lock_wait),
        claim_ms = ms(times.claim),
        release_ms = ms(times.release),
        delete_ms = ms(times.delete),
        evict_ms = ms(times.evict),
        finish_ms = ms(times.finish),
        "finished claim {id}: {rows} pastes, {objects} objects"
    );
}
