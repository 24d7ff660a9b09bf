//! When a run claims no more: told to, out of time, over its limit, paused, or braked.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    PgError, Worker,
    brake::{BRAKE_WITHIN, Taken, brake},
    drain::Drain,
    summary::StoppedBecause,
};
use crate::{
    fleet,
    postgres::{describe_pool, is_permanent},
};

const PAUSE_CHECK: Duration = Duration::from_secs(2);
/// A clock can jump and a migration can run in the middle of the night, too. Not more often than
/// this, and not for more than a hundredth of the time: counting a large backlog takes its while.
const BRAKE_CHECK: Duration = Duration::from_secs(30);
const BRAKE_SHARE: u32 = 100;

/// Why the loop ends, and with what error.
pub(in crate::worker) type Stop = (StoppedBecause, Option<String>);

impl Drain {
    pub(in crate::worker) async fn must_stop(&mut self) -> Option<Stop> {
        if let Some(stop) = self.stop.take() {
            return Some(stop);
        }
        if let Some(stop) = self.is_over() {
            return Some(stop);
        }
        if self.options.limit.is_some_and(|limit| self.worker.tally.rows() >= limit) {
            return Some((StoppedBecause::Limit, None));
        }
        if self.pause_checked.is_none_or(|checked| checked.elapsed() >= PAUSE_CHECK) {
            self.pause_checked = Some(Instant::now());
            if let Some(reason) = self.worker.paused().await {
                return Some((StoppedBecause::Paused, Some(format!("paused: {reason}"))));
            }
        }
        if self.options.override_brake || self.current_outage().is_some() {
            return None;
        }
        self.must_brake().await
    }

    fn is_over(&self) -> Option<Stop> {
        if self.worker.shutdown.stop.is_cancelled() {
            return Some((StoppedBecause::Signal, None));
        }
        let over = self.options.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        over.then_some((StoppedBecause::Deadline, None))
    }

    /// Nothing is claimed before this was answered: not to know is trouble.
    async fn must_brake(&mut self) -> Option<Stop> {
        let started = Instant::now();
        if self.brake_again.is_some_and(|again| started < again) {
            return None;
        }
        let (limit, in_flight) = (self.options.limit, self.rows_in_flight());
        let look = timeout(BRAKE_WITHIN, self.worker.brake(in_flight, limit));
        let Some(judged) = self.unless_stopped(look).await else {
            return self.is_over();
        };
        let too_long = |_| PgError::Timeout(deadpool_postgres::TimeoutType::Recycle);
        match judged.map_err(too_long).flatten() {
            Ok(judged) => {
                let pause = BRAKE_CHECK.max(started.elapsed() * BRAKE_SHARE);
                self.brake_again = Some(Instant::now() + pause);
                judged.map(|reason| (StoppedBecause::Brake, Some(reason)))
            }
            Err(error) => {
                let reason = format!("the brake cannot look: {}", describe_pool(&error));
                if matches!(&error, PgError::Backend(cause) if is_permanent(cause)) {
                    return Some((StoppedBecause::Failed, Some(reason)));
                }
                self.outage = Some(reason);
                None
            }
        }
    }

    /// The next batch's size within `--limit`; 0 while all that is left of it is in flight.
    pub(in crate::worker) fn room_in_limit(&self) -> u32 {
        let size = self.worker.settings.worker.batch_size;
        let Some(limit) = self.options.limit else {
            return size;
        };
        let taken = self.worker.tally.rows() + self.rows_in_flight();
        u32::try_from(limit.saturating_sub(taken)).map_or(size, |left| left.min(size))
    }
}

impl Worker {
    async fn brake(&self, in_flight: u64, limit: Option<u64>) -> Result<Option<String>, PgError> {
        let mut client = self.pool.get().await?;
        let taken = Taken { done: self.tally.rows(), in_flight };
        Ok(brake(&mut client, &self.settings.brake, taken, limit).await?)
    }

    /// Why the fleet is paused, if it is. Who cannot read it learns of that at the next claim.
    async fn paused(&self) -> Option<String> {
        let look = async {
            let client = self.pool.get().await.ok()?;
            fleet::read(&client).await.ok()?.paused
        };
        timeout(PAUSE_CHECK, look).await.ok().flatten()
    }
}
