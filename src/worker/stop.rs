//! When a run claims no more: told to, out of time, over its limit, paused, or braked.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{PgError, Worker, brake::brake, drain::Drain, summary::StoppedBecause};
use crate::{
    fleet,
    postgres::{answered, describe_pool},
};

const PAUSE_CHECK: Duration = Duration::from_secs(2);
/// A clock can jump and a migration can run in the middle of the night, too. Not more often than
/// this, and not for more than a hundredth of the time: counting a large backlog takes its while.
const BRAKE_CHECK: Duration = Duration::from_secs(30);
const BRAKE_SHARE: u32 = 100;

/// Why the loop ends, and with what error.
pub(super) type Stop = (StoppedBecause, Option<String>);

impl Drain {
    pub(super) async fn must_stop(&mut self) -> Option<Stop> {
        if let Some(reason) = self.hopeless.take() {
            return Some((StoppedBecause::Failed, Some(reason)));
        }
        if self.worker.shutdown.stop.is_cancelled() {
            return Some((StoppedBecause::Signal, None));
        }
        if self.options.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some((StoppedBecause::Deadline, None));
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
        if self.options.override_brake || self.in_trouble().is_some() {
            return None;
        }
        self.must_brake().await
    }

    /// Nothing is claimed before this was answered: not to know is trouble.
    async fn must_brake(&mut self) -> Option<Stop> {
        let started = Instant::now();
        if self.brake_again.is_some_and(|again| started < again) {
            return None;
        }
        match answered(self.worker.brake(self.options.limit)).await {
            Ok(judged) => {
                let pause = BRAKE_CHECK.max(started.elapsed() * BRAKE_SHARE);
                self.brake_again = Some(Instant::now() + pause);
                judged.map(|reason| (StoppedBecause::Brake, Some(reason)))
            }
            Err(error) => {
                self.trouble = Some(format!("the brake cannot look: {}", describe_pool(&error)));
                None
            }
        }
    }

    /// The next batch's size within `--limit`; 0 while all that is left of it is in flight.
    pub(super) fn room_in_limit(&self) -> u32 {
        let size = self.worker.settings.worker.batch_size;
        let Some(limit) = self.options.limit else {
            return size;
        };
        let taken = self.worker.tally.rows() + self.rows_in_flight();
        u32::try_from(limit.saturating_sub(taken)).map_or(size, |left| left.min(size))
    }
}

impl Worker {
    async fn brake(&self, limit: Option<u64>) -> Result<Option<String>, PgError> {
        let mut client = self.pool.get().await?;
        Ok(brake(&mut client, &self.settings.brake, self.tally.rows(), limit).await?)
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
