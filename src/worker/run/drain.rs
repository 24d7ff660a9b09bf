//! The run loop: claim, hand the batch to a task, claim the next while batches are in flight; stop
//! when nothing is due, or when told to.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::{error, info};

use super::{
    Options, StoppedBecause, Worker, every_paste_fails::Doubt, next_due::NextDue, stop::Stop,
    throttle::Throttle,
};
use crate::{
    backoff::jittered,
    claim::{Claim, Fence, must_run_alone},
    postgres::{answered, describe_pool},
    worker::batch::{BatchEnd, claim::Wanted},
};

/// How long due rows may stay locked by others while nothing else is left to do.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(60);

const LOCKED: &str = "rows that another transaction locks";
const BACKING_OFF: &str = "rows that back off";

/// The loop's state.
pub(in crate::worker) struct Drain {
    pub(in crate::worker) worker: Arc<Worker>,
    pub(in crate::worker) options: Options,
    pub(in crate::worker) batches: JoinSet<BatchEnd>,
    /// The claim and the number of rows of each task.
    in_flight: HashMap<tokio::task::Id, (Fence, usize)>,
    /// The batch in flight must have the process to itself.
    alone: bool,
    /// Nothing due before this is looked for until a plain look says otherwise.
    mark: Option<SystemTime>,
    /// A claim or a batch failed because of a transient error.
    pub(in crate::worker) outage: Option<String>,
    /// What only a person can fix.
    pub(in crate::worker) stop: Option<Stop>,
    /// Every paste of a batch failed. Some of those that came due last tell whether it is the pastes
    /// or the database.
    pub(in crate::worker) doubt: Option<Doubt>,
    /// Since when nothing has been finished although something was in trouble.
    pub(in crate::worker) outage_since: Option<Instant>,
    /// The size of the largest batch that was in trouble since then.
    outage_rows: usize,
    pub(in crate::worker) outage_checks: u32,
    /// The trouble that was last told: a nightly mail needs each once.
    pub(in crate::worker) said: Option<String>,
    /// Batches that broke off: bugs, never expected, never hidden.
    broken: usize,
    pub(in crate::worker) idle_since: Option<Instant>,
    pub(in crate::worker) throttle: Throttle,
    pub(in crate::worker) pause_checked: Option<Instant>,
    pub(in crate::worker) brake_again: Option<Instant>,
}

impl Drain {
    pub fn new(worker: Arc<Worker>, options: Options) -> Self {
        Self {
            worker,
            options,
            batches: JoinSet::new(),
            in_flight: HashMap::new(),
            alone: false,
            mark: None,
            outage: None,
            stop: None,
            doubt: None,
            outage_since: None,
            outage_rows: 0,
            outage_checks: 0,
            said: None,
            broken: 0,
            idle_since: None,
            throttle: Throttle::default(),
            pause_checked: None,
            brake_again: None,
        }
    }

    pub async fn drain(&mut self) -> Stop {
        loop {
            if let Some(stop) = self.must_stop().await {
                return stop;
            }
            if let Some(reason) = self.current_outage() {
                if let Some(stop) = self.wait_out_outage(reason).await {
                    return stop;
                }
                continue;
            }
            if self.doubt.is_some() {
                self.resolve_doubt().await;
                continue;
            }
            let room = self.batches.len() < self.worker.settings.worker.concurrency;
            let size = self.room_in_limit();
            if !room || size == 0 || (self.alone && !self.batches.is_empty()) {
                self.wait(Duration::from_secs(1)).await;
                continue;
            }
            if let Some(hold) = self.throttled().await {
                if let Some(stop) = self.hold_back(hold).await {
                    return stop;
                }
                continue;
            }
            match self.worker.claim(self.wanted(size)).await {
                Ok(Some(claim)) => self.set_off(claim, size),
                Ok(None) => {
                    if let Some(stop) = self.nothing_claimed(size).await {
                        return stop;
                    }
                }
                Err(error) if error.is_permanent() => {
                    self.stop = Some((StoppedBecause::Failed, Some(error.to_string())));
                }
                Err(error) => self.outage = Some(error.to_string()),
            }
        }
    }

    fn wanted(&self, size: u32) -> Wanted {
        let busy = !self.batches.is_empty();
        Wanted { size, mark: self.mark, busy, until: self.options.deadline }
    }

    pub(in crate::worker) fn rows_in_flight(&self) -> u64 {
        self.in_flight.values().map(|(_, rows)| *rows as u64).sum()
    }

    pub(in crate::worker) fn set_off(&mut self, claim: Claim, size: u32) {
        self.mark = Some(self.mark.map_or(claim.last_due, |mark| mark.max(claim.last_due)));
        self.idle_since = None;
        let max_rate = self.worker.settings.throttle.max_rate;
        self.throttle.claimed(claim.pastes.len(), claim.requested_at, max_rate);
        let flight = (claim.fence, claim.pastes.len());
        self.alone = claim.pastes.first().is_some_and(|paste| must_run_alone(size, paste.class()));
        let lost = self.worker.open(&claim);
        let worker = Arc::clone(&self.worker);
        let task = self.batches.spawn(worker.carry_out(claim, lost));
        self.in_flight.insert(task.id(), flight);
    }

    /// Nothing was claimed: is it that nothing is due, or that others have it?
    async fn nothing_claimed(&mut self, size: u32) -> Option<Stop> {
        let next = match answered(self.worker.next_due()).await {
            Ok(next) => next,
            Err(error) => {
                self.outage = Some(describe_pool(&error));
                return None;
            }
        };
        if !matches!(next, NextDue::Due { .. }) || !self.batches.is_empty() {
            self.idle_since = None;
        }
        match next {
            NextDue::Due { class } if must_run_alone(size, class) && !self.batches.is_empty() => {
                self.wait_for_all(Duration::MAX).await;
            }
            // Something from before the mark: released, or locked when its turn came.
            NextDue::Due { .. } if self.mark.take().is_some() => {}
            NextDue::Due { .. } => return self.wait_for_others().await,
            // A look is a walk over what this night has deleted: not one for each batch that ends.
            NextDue::DueIn(_) | NextDue::Nothing if !self.batches.is_empty() => {
                self.wait_for_all(Duration::from_secs(1)).await;
            }
            NextDue::DueIn(pause) => self.wait_for(("backing_off", BACKING_OFF), pause).await,
            NextDue::Nothing => return self.drained().await,
        }
        None
    }

    /// Nothing is due and nothing is in flight. A claim of ours that this process lost next of
    /// would still hide its rows: it is released first.
    pub(in crate::worker) async fn drained(&mut self) -> Option<Stop> {
        match self.worker.release_unconfirmed().await {
            Ok(0) if self.broken > 0 => {
                let reason = format!("{} batches broke off; the log says where", self.broken);
                return Some((StoppedBecause::Failed, Some(reason)));
            }
            Ok(0) => match answered(self.worker.held_by_dead_workers()).await {
                Ok(None) => return Some((StoppedBecause::Drained, None)),
                Ok(held) => return Some((StoppedBecause::DeadWorker, held)),
                Err(error) => self.outage = Some(describe_pool(&error)),
            },
            Ok(_) => {}
            Err(failure) => self.outage = Some(failure.to_string()),
        }
        None
    }

    /// Rows are due but locked: by claims that are about to be committed or rolled back, or by
    /// somebody's forgotten transaction. No progress is an error.
    async fn wait_for_others(&mut self) -> Option<Stop> {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if self.batches.is_empty() && since.elapsed() >= LOCKED_TIMEOUT {
            let reason = "pastes are due but locked by another transaction; \
                          look for long ones in pg_stat_activity";
            return Some((StoppedBecause::Failed, Some(reason.into())));
        }
        let pause = jittered(Duration::from_millis(100));
        self.wait_for(("locked_rows", LOCKED), pause).await;
        None
    }

    /// Takes note of batches that have ended already.
    pub(in crate::worker) async fn reap(&mut self) {
        while let Some(ended) = self.batches.try_join_next_with_id() {
            self.note(ended).await;
        }
    }

    /// [`Drain::wait`] for something that has a name in the summary, and one for people.
    pub(in crate::worker) async fn wait_for(
        &mut self,
        what: (&'static str, &str),
        longest: Duration,
    ) {
        let waiting = self.worker.tally.wait_for(what.1);
        self.wait(longest).await;
        self.worker.tally.waited(what.0, waiting);
    }

    /// Waits for a batch to end, at most so long, and not past a stop.
    pub(in crate::worker) async fn wait(&mut self, longest: Duration) {
        let until = Instant::now() + longest;
        let deadline = self.options.deadline.unwrap_or(until).min(until);
        let stop = self.worker.shutdown.stop.clone();
        tokio::select! {
            Some(ended) = self.batches.join_next_with_id(), if !self.batches.is_empty() => {
                self.note(ended).await;
            }
            () = sleep_until(deadline) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Waits for all batches to end, about so long at most, and not past a stop.
    async fn wait_for_all(&mut self, longest: Duration) {
        let started = Instant::now();
        let over = |deadline: Instant| Instant::now() >= deadline;
        while !self.batches.is_empty()
            && !self.worker.shutdown.stop.is_cancelled()
            && !self.options.deadline.is_some_and(over)
            && started.elapsed() < longest
        {
            self.wait(Duration::from_secs(1)).await;
        }
    }

    async fn note(&mut self, ended: Result<(tokio::task::Id, BatchEnd), JoinError>) {
        let (task, end) = match ended {
            Ok((task, end)) => (task, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        let flight = self.in_flight.remove(&task);
        match end {
            Ok(BatchEnd::Finished { rows }) => {
                self.doubt = self.doubt.take().filter(|_| rows == 0);
                // A lone paste that gets through does not prove that a batch would.
                if rows * 2 >= self.outage_rows {
                    self.outage_since = None;
                    self.outage_checks = 0;
                    self.outage_rows = 0;
                }
            }
            Ok(BatchEnd::Lost) => {}
            Ok(BatchEnd::Transient(reason)) => {
                let rows = flight.map_or(0, |(_, rows)| rows);
                self.outage_rows = self.outage_rows.max(rows);
                self.outage = Some(reason);
            }
            Ok(BatchEnd::Permanent(reason)) => {
                self.stop = Some((StoppedBecause::Failed, Some(reason)));
            }
            Ok(BatchEnd::EveryPasteFails(reason)) => self.doubt_it(reason),
            Ok(BatchEnd::Brake(reason)) => {
                self.stop = Some((StoppedBecause::Brake, Some(reason)));
            }
            Err(error) => {
                self.broken += 1;
                if let Some((fence, _)) = flight {
                    self.worker.open.remove(fence.claim);
                    error!(claim = fence.claim, "claim {} broke off: {error}", fence.claim);
                    // Failing here leaves it for later, when it costs nobody an attempt, or to
                    // the watchdog, which counts one.
                    if self.worker.release_panicked(fence).await.is_err() {
                        self.worker.open.add_unconfirmed();
                    }
                }
            }
        }
    }

    /// Finishes what is open within the grace period, and releases the rest.
    pub async fn close(&mut self) {
        let grace = self.worker.settings.worker.grace_period;
        if !self.batches.is_empty() {
            info!("finishing {} open batches, for at most {grace:?}", self.batches.len());
        }
        let grace_ends = sleep_until(Instant::now() + grace);
        tokio::pin!(grace_ends);
        while !self.batches.is_empty() {
            let abandoned = self.worker.shutdown.abandon.is_cancelled();
            tokio::select! {
                Some(ended) = self.batches.join_next_with_id() => self.note(ended).await,
                () = &mut grace_ends, if !abandoned => self.worker.shutdown.abandon.cancel(),
            }
        }
    }
}
