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
    Worker, batch::BatchEnd, claim::Wanted, doubt::Doubt, look::Sight, run::Options, stop::Stop,
    summary::StoppedBecause, throttle::Throttle,
};
use crate::{
    backoff::jittered,
    claim::{Claim, Fence, must_run_alone},
    postgres::{answered, describe_pool},
};

/// How long due rows may stay locked by others while nothing else is left to do.
const LOCKED_PATIENCE: Duration = Duration::from_secs(60);

const LOCKED: &str = "rows that another transaction locks";
const BACKING_OFF: &str = "rows that back off";

/// The loop's state.
pub(super) struct Drain {
    pub(super) worker: Arc<Worker>,
    pub(super) options: Options,
    pub(super) batches: JoinSet<BatchEnd>,
    /// The claim and the number of rows of each task.
    in_flight: HashMap<tokio::task::Id, (Fence, usize)>,
    /// The batch in flight must have the process to itself.
    alone: bool,
    /// Nothing due before this is looked for until a plain look says otherwise.
    mark: Option<SystemTime>,
    /// A claim or a batch failed for the surroundings' sake.
    pub(super) trouble: Option<String>,
    /// What only a person can mend.
    pub(super) stop: Option<Stop>,
    /// Every paste of a batch failed. Some of those that came due last tell whether it is the pastes
    /// or the database.
    pub(super) doubt: Option<Doubt>,
    /// Since when nothing has been finished although something was in trouble.
    pub(super) trouble_since: Option<Instant>,
    /// The size of the largest batch that was in trouble since then.
    troubled_rows: usize,
    pub(super) troubles: u32,
    /// The trouble that was last told: a nightly mail needs each once.
    pub(super) said: Option<String>,
    /// Batches that broke off: bugs, never expected, never hidden.
    broken: usize,
    pub(super) idle_since: Option<Instant>,
    pub(super) throttle: Throttle,
    pub(super) pause_checked: Option<Instant>,
    pub(super) brake_again: Option<Instant>,
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
            trouble: None,
            stop: None,
            doubt: None,
            trouble_since: None,
            troubled_rows: 0,
            troubles: 0,
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
            if let Some(reason) = self.in_trouble() {
                if let Some(stop) = self.wait_for_surroundings(reason).await {
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
                Err(error) if error.is_hopeless() => {
                    self.stop = Some((StoppedBecause::Failed, Some(error.to_string())));
                }
                Err(error) => self.trouble = Some(error.to_string()),
            }
        }
    }

    fn wanted(&self, size: u32) -> Wanted {
        let busy = !self.batches.is_empty();
        Wanted { size, mark: self.mark, busy, until: self.options.deadline }
    }

    pub(super) fn rows_in_flight(&self) -> u64 {
        self.in_flight.values().map(|(_, rows)| *rows as u64).sum()
    }

    pub(super) fn set_off(&mut self, claim: Claim, size: u32) {
        self.mark = Some(self.mark.map_or(claim.last_due, |mark| mark.max(claim.last_due)));
        self.idle_since = None;
        let max_rate = self.worker.settings.throttle.max_rate;
        self.throttle.claimed(claim.pastes.len(), claim.asked_at, max_rate);
        let flight = (claim.fence, claim.pastes.len());
        self.alone = claim.pastes.first().is_some_and(|paste| must_run_alone(size, paste.class()));
        let lost = self.worker.open(&claim);
        let worker = Arc::clone(&self.worker);
        let task = self.batches.spawn(worker.carry_out(claim, lost));
        self.in_flight.insert(task.id(), flight);
    }

    /// Nothing was claimed: is it that nothing is due, or that others have it?
    async fn nothing_claimed(&mut self, size: u32) -> Option<Stop> {
        let sight = match answered(self.worker.look()).await {
            Ok(sight) => sight,
            Err(error) => {
                self.trouble = Some(describe_pool(&error));
                return None;
            }
        };
        if !matches!(sight, Sight::Due { .. }) || !self.batches.is_empty() {
            self.idle_since = None;
        }
        match sight {
            Sight::Due { class } if must_run_alone(size, class) && !self.batches.is_empty() => {
                self.wait_for_all(Duration::MAX).await;
            }
            // Something from before the mark: given back, or locked when its turn came.
            Sight::Due { .. } if self.mark.take().is_some() => {}
            Sight::Due { .. } => return self.wait_for_others().await,
            // A look is a walk over what this night has deleted: not one for each batch that ends.
            Sight::DueIn(_) | Sight::Nothing if !self.batches.is_empty() => {
                self.wait_for_all(Duration::from_secs(1)).await;
            }
            Sight::DueIn(pause) => self.wait_for(("backing_off", BACKING_OFF), pause).await,
            Sight::Nothing => return self.drained().await,
        }
        None
    }

    /// Nothing is due and nothing is in flight. A claim of ours that this process lost sight of
    /// would still hide its rows: it is given back first.
    pub(super) async fn drained(&mut self) -> Option<Stop> {
        match self.worker.give_back_unknown().await {
            Ok(0) if self.broken > 0 => {
                let reason = format!("{} batches broke off; the log says where", self.broken);
                return Some((StoppedBecause::Failed, Some(reason)));
            }
            Ok(0) => match answered(self.worker.held_by_dead_workers()).await {
                Ok(None) => return Some((StoppedBecause::Drained, None)),
                Ok(held) => return Some((StoppedBecause::DeadWorker, held)),
                Err(error) => self.trouble = Some(describe_pool(&error)),
            },
            Ok(_) => {}
            Err(failure) => self.trouble = Some(failure.to_string()),
        }
        None
    }

    /// Rows are due but locked: by claims that are about to be committed or rolled back, or by
    /// somebody's forgotten transaction. No progress is an error.
    async fn wait_for_others(&mut self) -> Option<Stop> {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if self.batches.is_empty() && since.elapsed() >= LOCKED_PATIENCE {
            let reason = "pastes are due but locked by another transaction; \
                          look for long ones in pg_stat_activity";
            return Some((StoppedBecause::Failed, Some(reason.into())));
        }
        let pause = jittered(Duration::from_millis(100));
        self.wait_for(("locked_rows", LOCKED), pause).await;
        None
    }

    /// Takes note of batches that have ended already.
    pub(super) async fn reap(&mut self) {
        while let Some(ended) = self.batches.try_join_next_with_id() {
            self.note(ended).await;
        }
    }

    /// [`Drain::wait`] for something that has a name in the summary, and one for people.
    pub(super) async fn wait_for(&mut self, what: (&'static str, &str), longest: Duration) {
        let waiting = self.worker.tally.wait_for(what.1);
        self.wait(longest).await;
        self.worker.tally.waited(what.0, waiting);
    }

    /// Waits for a batch to end, at most so long, and not past a stop.
    pub(super) async fn wait(&mut self, longest: Duration) {
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
                if rows * 2 >= self.troubled_rows {
                    self.trouble_since = None;
                    self.troubles = 0;
                    self.troubled_rows = 0;
                }
            }
            Ok(BatchEnd::Lost) => {}
            Ok(BatchEnd::Troubled(reason)) => {
                let rows = flight.map_or(0, |(_, rows)| rows);
                self.troubled_rows = self.troubled_rows.max(rows);
                self.trouble = Some(reason);
            }
            Ok(BatchEnd::Hopeless(reason)) => {
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
                    if self.worker.hand_in_broken(fence).await.is_err() {
                        self.worker.open.lose_sight();
                    }
                }
            }
        }
    }

    /// Finishes what is open within the grace period, and gives back the rest.
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
