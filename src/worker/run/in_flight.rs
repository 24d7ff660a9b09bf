//! The batches of a run that are in flight, and waiting for them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claim::{Claim, Fence},
    worker::{Worker, batch::BatchEnd},
};

/// A batch that has ended.
pub(super) struct Ended {
    pub fence: Fence,
    /// How many rows it had claimed.
    pub rows: usize,
    /// The error: it panicked.
    pub end: Result<BatchEnd, JoinError>,
}

/// The tasks of the batches in flight.
pub(super) struct InFlight {
    tasks: JoinSet<BatchEnd>,
    claims: HashMap<tokio::task::Id, (Fence, usize)>,
    stop: CancellationToken,
    deadline: Option<Instant>,
}

impl InFlight {
    pub(super) fn new(stop: CancellationToken, deadline: Option<Instant>) -> Self {
        Self { tasks: JoinSet::new(), claims: HashMap::new(), stop, deadline }
    }

    /// Starts the steps of a claimed batch.
    pub(super) fn spawn(&mut self, worker: &Arc<Worker>, claim: Claim) {
        let batch = (claim.fence, claim.pastes.len());
        let lost = worker.open(&claim);
        let task = self.tasks.spawn(Arc::clone(worker).carry_out(claim, lost));
        self.claims.insert(task.id(), batch);
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns how many rows they have claimed.
    pub(super) fn rows(&self) -> u64 {
        self.claims.values().map(|(_, rows)| *rows as u64).sum()
    }

    /// Returns whether a signal or the deadline stops the run.
    pub(super) fn must_stop(&self) -> bool {
        self.stop.is_cancelled() || self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    /// Returns a batch that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Ended> {
        let joined = self.tasks.try_join_next_with_id()?;
        self.ended(joined)
    }

    /// Waits for the next batch to end. `None`: there is none.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        let joined = self.tasks.join_next_with_id().await?;
        self.ended(joined)
    }

    /// Waits for a batch to end, at most for `longest`, and not past a stop.
    pub(super) async fn wait(&mut self, longest: Duration) -> Option<Ended> {
        let until = Instant::now() + longest;
        let until = self.deadline.unwrap_or(until).min(until);
        let stop = self.stop.clone();
        tokio::select! {
            ended = self.next(), if !self.tasks.is_empty() => ended,
            () = sleep_until(until) => None,
            () = stop.cancelled() => None,
        }
    }

    /// Runs a check that a signal or the deadline interrupts. `None`: it was interrupted.
    pub(super) async fn unless_stopped<T>(&self, check: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            checked = check => Some(checked),
            () = out_of_time(self.deadline) => None,
            () = self.stop.cancelled() => None,
        }
    }

    fn ended(&mut self, joined: Result<(tokio::task::Id, BatchEnd), JoinError>) -> Option<Ended> {
        let (task, end) = match joined {
            Ok((task, end)) => (task, Ok(end)),
            Err(error) => (error.id(), Err(error)),
        };
        let (fence, rows) = self.claims.remove(&task)?;
        Some(Ended { fence, rows, end })
    }
}

/// Waits for the deadline, if there is one.
pub(super) async fn out_of_time(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
