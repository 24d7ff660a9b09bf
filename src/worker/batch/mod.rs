//! One claimed batch on its way through the steps, in the order data flows:
//!
//! `lock` → `claim` → `decrement` → `delete_objects` → `evict` → `finish`
//!
//! Beside them: `heartbeat` keeps the lease of the open claims, `open_claims` lists them, `retry`
//! repeats a step whose answer was lost, `fail_rows` takes bad rows out of a batch, and `release`
//! returns a claim that cannot be finished.

pub mod claim;
pub mod decrement;
pub mod delete_objects;
pub mod evict;
pub mod finish;
pub mod lock;

mod fail_rows;
pub mod heartbeat;
pub mod open_claims;
pub mod release;
mod retry;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use self::{
    claim::ClaimStep,
    decrement::{DecrementStep, MissingContent},
    delete_objects::{DeleteObjectsStep, ObjectsDeleted},
    evict::EvictStep,
    fail_rows::FailRows,
    finish::{FinishStep, Finished},
    release::Release,
    retry::{Retry, STEP_TIMEOUT},
};
pub use self::{lock::Lock, open_claims::OpenClaims};
use super::{
    Worker,
    report::{PhaseTimes, Tally, summary::ms},
};
use crate::{
    claim::{Claim, Decremented, LeaseLost, StepError, reset::ResetReason},
    config::Settings,
    failpoint,
    format::counted,
    objects::Objects,
    redis::Redis,
    shutdown::Shutdown,
    telemetry,
};

/// Added to the deadline of a step. A step that takes longer is stuck, and its claim gets no more
/// heartbeats.
const SLACK: Duration = Duration::from_secs(15);

/// What the steps are made of.
pub(super) struct StepsNeed {
    pub id: Uuid,
    pub settings: Arc<Settings>,
    pub shutdown: Shutdown,
    pub open: Arc<OpenClaims>,
    pub tally: Arc<Tally>,
    pub pool: Pool,
    pub lock: Lock,
    pub redis: Redis,
    pub objects: Objects,
}

/// The steps of a batch, each with what it needs and no more.
pub(super) struct Steps {
    pub claim: ClaimStep,
    pub decrement: DecrementStep,
    pub delete_objects: DeleteObjectsStep,
    pub evict: EvictStep,
    pub finish: FinishStep,
    pub release: Release,
}

impl Steps {
    pub(super) fn new(need: StepsNeed) -> Self {
        let StepsNeed { id, settings, shutdown, open, tally, pool, lock, redis, objects } = need;
        let retry = Retry::new(pool.clone(), settings.worker.outage_timeout);
        let fail_rows = FailRows::new(&settings.worker);
        Self {
            decrement: DecrementStep::new(
                pool.clone(),
                retry.clone(),
                fail_rows,
                MissingContent::new(Arc::clone(&tally)),
                Arc::clone(&tally),
            ),
            delete_objects: DeleteObjectsStep::new(
                pool.clone(),
                objects.clone(),
                settings.s3.deadline,
                Arc::clone(&open),
            ),
            evict: EvictStep::new(redis, settings.cache.key_pattern.clone(), Arc::clone(&tally)),
            finish: FinishStep::new(
                pool.clone(),
                retry,
                fail_rows,
                !settings.retention.tombstones.is_zero(),
                Arc::clone(&tally),
            ),
            release: Release::new(
                id,
                pool.clone(),
                Arc::clone(&settings),
                Arc::clone(&open),
                Arc::clone(&tally),
            ),
            claim: ClaimStep::new(id, pool, lock, &objects, &settings, shutdown, open, tally),
        }
    }
}

/// How a batch ended, as the drain loop must know it.
#[derive(Debug)]
pub(super) enum BatchEnd {
    Finished {
        rows: usize,
        /// No paste was deleted, failed or missing: all of them had left the claim.
        all_left: bool,
    },
    /// The claim was reset meanwhile: nothing is left to do.
    LeaseLost,
    /// Released because of a transient error: claim nothing until the dependencies are available.
    Transient(String),
    /// Released because of an error that needs an operator: stop.
    Permanent(String),
    /// Released because every paste of it failed: the cause is either the pastes or the database.
    EveryPasteFails(String),
    /// Released because it would delete too much: stop.
    Brake(String),
}

/// Measures the steps one after the other.
struct Stopwatch(Instant);

impl Stopwatch {
    /// Returns the time since the last lap.
    fn lap(&mut self) -> Duration {
        let lap = self.0.elapsed();
        self.0 += lap;
        lap
    }
}

impl Worker {
    /// Registers the claim for heartbeats. The token is cancelled when its lease is lost.
    pub(super) fn open(&self, claim: &Claim) -> CancellationToken {
        self.open.insert(claim.fence.claim, claim.requested_at, STEP_TIMEOUT + SLACK)
    }

    /// Takes the batch through its steps, unless its lease is lost or the process must exit.
    pub(super) async fn carry_out(
        self: Arc<Self>,
        claim: Claim,
        lost: CancellationToken,
    ) -> BatchEnd {
        let claim_time = claim.requested_at.elapsed();
        self.tally.batch_started(claim.pastes.len());
        let ended = tokio::select! {
            ended = self.all_steps(&claim, claim_time) => ended,
            () = lost.cancelled() => Err(LeaseLost(claim.fence).into()),
            () = self.shutdown.abandon.cancelled() => {
                Err(StepError::Transient("the run stopped before the batch was finished".into()))
            }
        };
        self.tally.batch_ended(claim.pastes.len());
        let (end, may_be_open) = self.end_batch(&claim, ended).await;
        // In this order: a search for unconfirmed claims in between finds it, and does no harm.
        let expired = self.open.remove(claim.fence.claim);
        if expired || may_be_open {
            self.open.add_unconfirmed();
        }
        match expired {
            true => {
                BatchEnd::Transient(heartbeat::no_heartbeat(self.settings.watchdog.stuck_after))
            }
            false => end,
        }
    }

    /// Returns how many rows were deleted.
    async fn all_steps(&self, claim: &Claim, claim_time: Duration) -> Result<Finished, StepError> {
        let id = claim.fence.claim;
        let mut times = PhaseTimes {
            claim: claim_time,
            lock_wait: claim.lock_wait,
            lock_hold: claim.lock_hold,
            ..PhaseTimes::default()
        };
        let mut watch = Stopwatch(Instant::now());
        failpoint::holds(claim.pastes.iter().map(|paste| &*paste.short_code));

        let decremented = self.decrement(claim).await?;
        times.decrement = watch.lap();
        self.tally.drifted(decremented.drift);
        self.tally.failed(decremented.failed.iter().map(|(code, _)| code.clone()));

        self.open.progress(id, self.steps.delete_objects.longest());
        let objects = self.delete_objects(claim, &decremented).await?;
        times.delete = watch.lap();

        self.open.progress(id, evict::FAILOVER_TAKES + SLACK);
        self.evict(claim).await;
        times.evict = watch.lap();

        self.open.progress(id, STEP_TIMEOUT + SLACK);
        let finished = self.finish(claim, &objects, &times).await?;
        times.finish = watch.lap();

        self.tally.failed(finished.failed.iter().map(|(code, _)| code.clone()));
        self.tally.gone(finished.gone);
        self.tally.finished(finished.rows, objects.deleted, decremented.bytes, &times);
        if !telemetry::bar_is_shown() {
            log_finished(claim, &finished, &objects, &decremented, &times);
        }
        Ok(finished)
    }

    /// Releases what was not finished. Returns how the batch ended, and whether its claim may still be
    /// open.
    async fn end_batch(
        &self,
        claim: &Claim,
        ended: Result<Finished, StepError>,
    ) -> (BatchEnd, bool) {
        let error = match ended {
            Ok(Finished { rows, failed, gone }) => {
                let all_left = rows == 0 && failed.is_empty() && gone == 0;
                let rows = usize::try_from(rows).unwrap_or(usize::MAX);
                return (BatchEnd::Finished { rows, all_left }, false);
            }
            Err(error) => error,
        };
        match error {
            StepError::LeaseLost(lost) => {
                warn!(claim = claim.fence.claim, "{lost}");
                self.tally.lost();
                (BatchEnd::LeaseLost, false)
            }
            StepError::Transient(reason) => {
                let may_be_open =
                    !self.release_or_warn(claim, ResetReason::Released(&reason)).await;
                (BatchEnd::Transient(reason), may_be_open)
            }
            StepError::Permanent(reason) => {
                let may_be_open =
                    !self.release_or_warn(claim, ResetReason::Released(&reason)).await;
                (BatchEnd::Permanent(reason), may_be_open)
            }
            StepError::Database(fault) => {
                let reason = fault.to_string();
                let why = ResetReason::AllFailed(&fault.error, &fault.pastes);
                let may_be_open = !self.release_or_warn(claim, why).await;
                self.tally.failed(fault.pastes.into_iter().map(|(code, _)| code));
                (BatchEnd::EveryPasteFails(reason), may_be_open)
            }
            StepError::Brake(reason) => {
                let may_be_open = !self.release_or_warn(claim, ResetReason::Brake(&reason)).await;
                (BatchEnd::Brake(reason), may_be_open)
            }
        }
    }

    /// Returns whether the claim was released.
    async fn release_or_warn(&self, claim: &Claim, why: ResetReason<'_>) -> bool {
        let id = claim.fence.claim;
        self.open.progress(id, STEP_TIMEOUT + SLACK);
        let released = self.steps.release.because(claim.fence, why).await;
        match &released {
            Ok(reset) => self.tally.released(reset),
            Err(error) => warn!(claim = id, "could not release claim {id}, trying later: {error}"),
        }
        released.is_ok()
    }
}

/// One event per batch: fields for filtering, a sentence for reading. `elapsed_ms` is everything after
/// the claim.
fn log_finished(
    claim: &Claim,
    finished: &Finished,
    deleted: &ObjectsDeleted,
    decremented: &Decremented,
    times: &PhaseTimes,
) {
    let (id, rows, objects) = (claim.fence.claim, finished.rows, deleted.deleted);
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
        "finished claim {id}: {}, {}",
        counted(rows, "paste"),
        counted(objects, "object")
    );
}
