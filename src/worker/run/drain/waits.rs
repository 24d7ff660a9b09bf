//! The waits of the drain loop. Each ends early when a batch ends or the run must stop.

use std::time::Duration;

use tokio::time::Instant;

use super::Drain;
use crate::{
    backoff::jittered,
    postgres::{answered, forget_statements},
    worker::{
        report::StoppedBecause,
        run::{
            next_due::{NextDue, next_due},
            outage::check_dependencies,
            stop::Stop,
            throttle::WaitReason,
        },
    },
};

/// How long due rows may stay locked by other transactions while nothing else is left to do.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(60);

const LOCKED: &str = "rows locked by another transaction";

impl Drain {
    /// Rows are due but locked: by claims that are about to be committed or rolled back, or by a forgotten
    /// transaction. No progress for a minute is an error.
    pub(super) async fn wait_for_locked(&mut self) -> Option<Stop> {
        let since = *self.locked_since.get_or_insert_with(Instant::now);
        if self.in_flight.is_empty() && since.elapsed() >= LOCKED_TIMEOUT {
            let reason = "due pastes have been locked by other transactions for a minute; \
                          `cleanupctl doctor --long-transaction 1m` names the oldest, with the \
                          statement that ends it";
            return Some((StoppedBecause::Failed, Some(reason.into())));
        }
        self.wait_for("locked_rows", LOCKED, jittered(Duration::from_millis(100))).await;
        None
    }

    /// Waits because of the throttle, unless nothing could be claimed afterwards.
    pub(super) async fn wait_for_throttle(&mut self, wait: WaitReason) -> Option<Stop> {
        if self.in_flight.is_empty() && self.throttle.must_check_due() {
            let check = self.in_flight.unless_stopped(answered(next_due(&self.worker))).await;
            if matches!(check, Some(Ok(NextDue::Nothing))) {
                return self.drained().await;
            }
        }
        let started = Instant::now();
        self.wait_for(wait.name, &wait.reason, wait.pause).await;
        self.outage.exclude(started.elapsed());
        self.fruitless.exclude(started.elapsed());
        self.locked_since = None;
        None
    }

    /// Claims nothing until the next check of the dependencies.
    pub(super) async fn wait_out_outage(&mut self, reason: String) -> Option<Stop> {
        while let Some(ended) = self.in_flight.try_next() {
            self.note(ended).await;
        }
        self.fruitless.forget();
        let timeout = self.worker.settings.worker.outage_timeout;
        let pause = match self.outage.next_check(&reason, timeout) {
            Ok(pause) => pause,
            Err(gave_up) => return Some((StoppedBecause::Failed, Some(gave_up.to_string()))),
        };
        self.wait_for("dependency_unavailable", &reason, pause).await;
        forget_statements(&self.worker.pool);
        let check = check_dependencies(&self.worker);
        if let Some(result) = self.in_flight.unless_stopped(check).await {
            self.outage.checked(&self.worker, result);
        }
        None
    }

    /// Waits for something that has a name in the summary and a text for people.
    pub(super) async fn wait_for(&mut self, name: &'static str, reason: &str, longest: Duration) {
        let waiting = self.worker.tally.wait_for(reason);
        self.wait(longest).await;
        self.worker.tally.waited(name, waiting);
    }

    pub(super) async fn wait(&mut self, longest: Duration) {
        if let Some(ended) = self.in_flight.wait(longest).await {
            self.note(ended).await;
        }
    }

    /// Waits for all batches to end, about as long as `longest`, and not past a stop.
    pub(super) async fn wait_for_all(&mut self, longest: Duration) {
        let started = Instant::now();
        while !self.in_flight.is_empty()
            && !self.in_flight.must_stop()
            && started.elapsed() < longest
        {
            self.wait(Duration::from_secs(1)).await;
        }
    }
}
