//! The drain loop: claim, start the batch's steps as a task, claim the next while batches are in flight;
//! stop when nothing is due, or when a stop check (signal, deadline, limit, pause, brake) requires
//! it.

mod waits;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

use super::{
    Options,
    every_paste_fails::EveryPasteFails,
    fruitless::Fruitless,
    in_flight::{Ended, InFlight},
    next_due::{NextDue, next_due, nothing_due},
    outage::Outage,
    stop::{Braked, Stop, StopChecks, is_over, room_in_limit},
    throttle::Throttle,
};
use crate::{
    claim::{Claim, must_run_alone},
    format::counted,
    postgres::{answered, bisect::IN_A_ROW},
    worker::{
        Worker,
        batch::{
            BatchEnd,
            claim::{ClaimError, Wanted},
        },
        report::StoppedBecause,
    },
};

const BACKING_OFF: &str = "rows that back off";

/// The state of the loop.
pub(super) struct Drain {
    worker: Arc<Worker>,
    options: Options,
    in_flight: InFlight,
    /// The batch in flight must have the process to itself.
    alone: bool,
    /// The low-water mark: nothing due before this is claimed until a query without it finds some.
    mark: Option<SystemTime>,
    outage: Outage,
    every_paste_fails: EveryPasteFails,
    fruitless: Fruitless,
    /// Why the run must stop: an error that needs an operator.
    stop: Option<Stop>,
    /// Batches that panicked: bugs, never expected, never hidden.
    panicked: usize,
    /// Since when all due rows have been locked.
    locked_since: Option<Instant>,
    throttle: Throttle,
    checks: StopChecks,
}

impl Drain {
    pub(super) fn new(worker: Arc<Worker>, options: Options) -> Self {
        let in_flight = InFlight::new(worker.shutdown.stop.clone(), options.deadline);
        Self {
            worker,
            options,
            in_flight,
            alone: false,
            mark: None,
            outage: Outage::default(),
            every_paste_fails: EveryPasteFails::default(),
            fruitless: Fruitless::default(),
            stop: None,
            panicked: 0,
            locked_since: None,
            throttle: Throttle::default(),
            checks: StopChecks::default(),
        }
    }

    pub(super) async fn drain(&mut self) -> Stop {
        loop {
            if let Some(stop) = self.must_stop().await {
                return stop;
            }
            let next = match self.outage.reason(&self.worker) {
                Some(reason) => self.wait_out_outage(reason).await,
                None if self.every_paste_fails.is_open() => {
                    self.try_newest().await;
                    None
                }
                None => self.claim_next().await,
            };
            if let Some(stop) = next {
                return stop;
            }
        }
    }

    async fn must_stop(&mut self) -> Option<Stop> {
        let stop = self.stop.take().or_else(|| is_over(&self.worker, &self.options));
        if stop.is_some() {
            return stop;
        }
        if let Some(paused) = self.checks.paused(&self.worker).await {
            return Some(paused);
        }
        if self.options.override_brake || self.outage.reason(&self.worker).is_some() {
            return None;
        }
        match self.checks.brake(&self.worker, &self.options, &self.in_flight).await {
            Braked::GoOn => None,
            Braked::Stop(stop) => Some(stop),
            Braked::Unknown(reason) => {
                self.outage.begin(reason);
                None
            }
        }
    }

    async fn claim_next(&mut self) -> Option<Stop> {
        let has_room = self.in_flight.len() < self.worker.settings.worker.concurrency;
        let size = room_in_limit(&self.worker, &self.options, &self.in_flight);
        let fruitless = self.fruitless.is_too_long(&self.worker.settings.worker);
        if !has_room || size == 0 || ((self.alone || fruitless) && !self.in_flight.is_empty()) {
            self.wait(Duration::from_secs(1)).await;
            return None;
        }
        if fruitless && !self.fruitless.try_without_mark() {
            self.fruitless.forget();
            return self.drained().await;
        }
        self.mark = self.mark.filter(|_| !fruitless);
        if let Some(wait) = self.throttle.reason_to_wait(&self.worker, &self.in_flight).await {
            return self.wait_for_throttle(wait).await;
        }
        let busy = !self.in_flight.is_empty();
        let wanted = Wanted { size, mark: self.mark, busy, until: self.options.deadline };
        match self.worker.claim(wanted).await {
            Ok(Some(claim)) => self.start(claim, size),
            Ok(None) => return self.nothing_claimed(size).await,
            Err(error) if error.is_permanent() => self.fail(error.to_string()),
            Err(error) => self.outage.begin(error.to_string()),
        }
        None
    }

    fn start(&mut self, claim: Claim, size: u32) {
        self.mark = Some(self.mark.map_or(claim.last_due, |mark| mark.max(claim.last_due)));
        self.locked_since = None;
        self.fruitless.batch_started(&claim);
        let max_rate = self.worker.settings.throttle.max_rate;
        self.throttle.claimed(claim.pastes.len(), claim.requested_at, max_rate);
        self.alone = claim.pastes.first().is_some_and(|paste| must_run_alone(size, paste.class()));
        self.in_flight.spawn(&self.worker, claim);
    }

    fn fail(&mut self, reason: String) {
        self.stop = Some((StoppedBecause::Failed, Some(reason)));
    }

    /// Nothing was claimed: is nothing due, or do other transactions have it?
    async fn nothing_claimed(&mut self, size: u32) -> Option<Stop> {
        let next = match answered(next_due(&self.worker)).await {
            Ok(next) => next,
            Err(error) => {
                self.outage.begin(error.to_string());
                return None;
            }
        };
        if !matches!(next, NextDue::Due { .. }) || !self.in_flight.is_empty() {
            self.locked_since = None;
        }
        match next {
            NextDue::Due { class } if must_run_alone(size, class) && !self.in_flight.is_empty() => {
                self.wait_for_all(Duration::MAX).await;
            }
            // Something from before the mark: released, or locked when its turn came.
            NextDue::Due { .. } if self.mark.take().is_some() => {}
            NextDue::Due { .. } => return self.wait_for_locked().await,
            // The query walks over what this night has deleted: not once for each batch that ends.
            NextDue::DueIn(_) | NextDue::Nothing if !self.in_flight.is_empty() => {
                self.wait_for_all(Duration::from_secs(1)).await;
            }
            NextDue::DueIn(pause) => self.wait_for("backing_off", BACKING_OFF, pause).await,
            NextDue::Nothing => return self.drained().await,
        }
        None
    }

    /// Nothing is due and nothing is in flight. An unconfirmed claim of ours would still hide its rows: it
    /// is released first.
    async fn drained(&mut self) -> Option<Stop> {
        match self.worker.release_unconfirmed().await {
            Ok(0) if self.panicked > 0 => {
                let batches = counted(self.panicked, "batch");
                let reason = format!(
                    "{batches} panicked, which is a bug; their pastes count an attempt; search the \
                     log for \"panicked\""
                );
                return Some((StoppedBecause::Failed, Some(reason)));
            }
            Ok(0) => match answered(nothing_due(&self.worker)).await {
                Ok(stop) => return Some(stop),
                Err(error) => self.outage.begin(error.to_string()),
            },
            Ok(_) => {}
            Err(error) => self.outage.begin(error.to_string()),
        }
        None
    }

    /// Every paste of a batch failed. Waits for the batches in flight, any of which may prove that the
    /// database works; then tries the pastes that came due last.
    async fn try_newest(&mut self) {
        if !self.in_flight.is_empty() {
            return self.wait(Duration::from_secs(1)).await;
        }
        let Some(reason) = self.every_paste_fails.take_untried() else {
            return;
        };
        match answered::<_, ClaimError>(self.worker.steps.claim.newest_due()).await {
            Ok(Some(claim)) => {
                self.every_paste_fails.keep(reason, true);
                self.start(claim, u32::try_from(IN_A_ROW).unwrap_or(u32::MAX));
            }
            Ok(None) => self.fail(reason),
            Err(error) if error.is_permanent() => self.fail(error.to_string()),
            Err(error) => {
                self.every_paste_fails.keep(reason, false);
                self.outage.begin(error.to_string());
            }
        }
    }

    async fn note(&mut self, Ended { fence, rows, end }: Ended) {
        match end {
            Ok(BatchEnd::Finished { rows, all_left }) => {
                self.every_paste_fails.batch_finished(rows);
                self.outage.batch_finished(rows);
                if let Err(error) = self.fruitless.batch_finished(rows, all_left) {
                    self.fail(error.to_string());
                }
            }
            Ok(BatchEnd::LeaseLost) => {}
            Ok(BatchEnd::Transient(reason)) => self.outage.batch_failed(reason, rows),
            Ok(BatchEnd::Permanent(reason)) => self.fail(reason),
            Ok(BatchEnd::EveryPasteFails(reason)) => {
                if let Some(reason) = self.every_paste_fails.again(reason) {
                    self.fail(reason);
                }
            }
            Ok(BatchEnd::Brake(reason)) => self.stop = Some((StoppedBecause::Brake, Some(reason))),
            Err(error) => {
                self.panicked += 1;
                self.worker.open.remove(fence.claim);
                error!(claim = fence.claim, "the batch of claim {} panicked: {error}", fence.claim);
                // If this fails, a later release costs no attempt, or the watchdog counts one.
                if self.worker.steps.release.panicked(fence).await.is_err() {
                    self.worker.open.add_unconfirmed();
                }
            }
        }
    }

    /// Finishes the batches in flight within the grace period, and releases the rest.
    pub(super) async fn close(&mut self) {
        let grace = self.worker.settings.worker.grace_period;
        if !self.in_flight.is_empty() {
            let open = counted(self.in_flight.len(), "open batch");
            info!("stopping: finishing {open}, for at most {grace:?} (worker.grace_period)");
        }
        let grace_ends = sleep_until(Instant::now() + grace);
        tokio::pin!(grace_ends);
        while !self.in_flight.is_empty() {
            let abandoned = self.worker.shutdown.abandon.is_cancelled();
            tokio::select! {
                Some(ended) = self.in_flight.next() => self.note(ended).await,
                () = &mut grace_ends, if !abandoned => self.worker.shutdown.abandon.cancel(),
            }
        }
    }
}
