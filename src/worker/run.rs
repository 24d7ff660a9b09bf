//! One run, from the sweep at its start to the summary at its end.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::warn;

use super::{
    Worker,
    claim::describe_pool,
    drain::{Drain, Stop},
    progress,
    summary::{StoppedBecause, Summary},
};
use crate::{postgres::answered, watchdog};

/// Bounds of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Stop after so many pastes.
    pub limit: Option<u64>,
    /// Stop at this time.
    pub deadline: Option<Instant>,
}

impl Worker {
    /// Drains what has expired, and says what was done and why it stopped.
    pub async fn run(self: &Arc<Self>, options: Options) -> Summary {
        let started = Instant::now();
        let heartbeat = tokio::spawn(Arc::clone(self).heartbeat());
        let bar = progress::start(Arc::clone(self));
        let reset = self.sweep_at_start().await;
        let mut batches = Drain::new(Arc::clone(self), options);
        let stop = batches.drain().await;
        batches.close().await;
        heartbeat.abort();
        progress::end(bar);
        let mut summary = self.summarise(stop, started.elapsed()).await;
        summary.claims_reset_at_start = reset as u64;
        summary
    }

    /// For people who have cron only: a run recovers what an earlier one left behind.
    async fn sweep_at_start(&self) -> usize {
        match watchdog::sweep(&self.pool, &self.settings).await {
            Ok(swept) => swept.reset.claims,
            Err(error) => {
                warn!("the sweep at start did not succeed: {}", describe_pool(&error));
                0
            }
        }
    }

    async fn summarise(&self, (because, error): Stop, elapsed: Duration) -> Summary {
        if let Err(error) = self.give_back_unknown().await {
            warn!("cannot look for claims of lost answers: {}", describe_pool(&error));
        }
        let figures = self.tally.figures();
        let unnamed = figures.failed_count - figures.failed.len() as u64;
        let remaining = match figures.failed.is_empty() {
            true => Ok(0),
            false => answered(self.still_there(&figures.failed)).await.map(|named| named + unnamed),
        };
        let mut summary = figures.into_summary(self.id, because, error, elapsed);
        summary.left = answered(self.left()).await.ok();
        let remaining = remaining.unwrap_or(summary.rows_failed);
        summary.rows_failed = remaining;
        if remaining > 0 && because == StoppedBecause::Drained {
            summary.stopped_because = StoppedBecause::Failed;
            summary.error = Some(format!(
                "{remaining} pastes could not be deleted in this run; their last_error says why"
            ));
        }
        summary
    }
}
