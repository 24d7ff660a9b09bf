//! When a run claims no more: a signal, the deadline, the limit, a pause, or the safety brake.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    Options,
    brake::{BRAKE_WITHIN, Taken, brake},
    in_flight::InFlight,
};
use crate::{
    fleet,
    postgres::PgError,
    worker::{Worker, report::StoppedBecause},
};

const PAUSE_CHECK: Duration = Duration::from_secs(2);
/// Minimum interval between two checks of the safety brake: a clock can jump and a migration can
/// run in the middle of a run, too. `BRAKE_SHARE` limits the checks to 1 % of the run's time.
const BRAKE_CHECK: Duration = Duration::from_secs(30);
const BRAKE_SHARE: u32 = 100;

/// Why the loop ends, and with what error.
pub(super) type Stop = (StoppedBecause, Option<String>);

/// What the safety brake decided.
pub(super) enum Braked {
    GoOn,
    Stop(Stop),
    /// It could not be checked: nothing is claimed before it was.
    Unknown(String),
}

/// When the checks were last made.
#[derive(Debug, Default)]
pub(super) struct StopChecks {
    pause_checked: Option<Instant>,
    next_brake_check: Option<Instant>,
}

/// Checks signal, deadline and limit.
pub(super) fn is_over(worker: &Worker, options: &Options) -> Option<Stop> {
    if worker.shutdown.stop.is_cancelled() {
        return Some((StoppedBecause::Signal, None));
    }
    if options.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Some((StoppedBecause::Deadline, None));
    }
    let is_reached = options.limit.is_some_and(|limit| worker.tally.rows() >= limit);
    is_reached.then_some((StoppedBecause::Limit, None))
}

impl StopChecks {
    /// Checks, every two seconds, whether the fleet is paused. If that cannot be read, the next claim
    /// reports why.
    pub(super) async fn paused(&mut self, worker: &Worker) -> Option<Stop> {
        if self.pause_checked.is_some_and(|checked| checked.elapsed() < PAUSE_CHECK) {
            return None;
        }
        self.pause_checked = Some(Instant::now());
        let read = async {
            let client = worker.pool.get().await.ok()?;
            fleet::read(&client).await.ok()?.paused
        };
        let reason = timeout(PAUSE_CHECK, read).await.ok().flatten()?;
        Some((StoppedBecause::Paused, Some(format!("the fleet is paused: {reason}"))))
    }

    /// Checks, from time to time, whether the run would delete too much.
    pub(super) async fn brake(
        &mut self,
        worker: &Worker,
        options: &Options,
        in_flight: &InFlight,
    ) -> Braked {
        let started = Instant::now();
        if self.next_brake_check.is_some_and(|next| started < next) {
            return Braked::GoOn;
        }
        let check = timeout(BRAKE_WITHIN, check_brake(worker, in_flight.rows(), options.limit));
        let Some(checked) = in_flight.unless_stopped(check).await else {
            return is_over(worker, options).map_or(Braked::GoOn, Braked::Stop);
        };
        match checked.map_err(|_| PgError::NoAnswer(BRAKE_WITHIN)).flatten() {
            Ok(reason) => {
                let pause = BRAKE_CHECK.max(started.elapsed() * BRAKE_SHARE);
                self.next_brake_check = Some(Instant::now() + pause);
                let stop = |reason| Braked::Stop((StoppedBecause::Brake, Some(reason)));
                reason.map_or(Braked::GoOn, stop)
            }
            Err(error) => {
                let reason = format!("the safety check failed: {error}");
                match error.is_permanent() {
                    true => Braked::Stop((StoppedBecause::Failed, Some(reason))),
                    false => Braked::Unknown(reason),
                }
            }
        }
    }
}

async fn check_brake(
    worker: &Worker,
    in_flight: u64,
    limit: Option<u64>,
) -> Result<Option<String>, PgError> {
    let mut client = worker.pool.get().await?;
    let taken = Taken { done: worker.tally.rows(), in_flight };
    Ok(brake(&mut client, &worker.settings.brake, taken, limit).await?)
}

/// Returns the size of the next batch within `--limit`; 0 while all that is left of it is in flight.
pub(super) fn room_in_limit(worker: &Worker, options: &Options, in_flight: &InFlight) -> u32 {
    let size = worker.settings.worker.batch_size;
    let Some(limit) = options.limit else {
        return size;
    };
    let taken = worker.tally.rows() + in_flight.rows();
    u32::try_from(limit.saturating_sub(taken)).map_or(size, |left| left.min(size))
}
