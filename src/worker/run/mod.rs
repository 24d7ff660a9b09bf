//! One run, from the sweep at its start to the summary at its end.

pub mod brake;
mod drain;
pub mod dry_run;
mod every_paste_fails;
mod next_due;
mod outage;
mod stop;
mod throttle;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

use self::{drain::Drain, stop::Stop};
use super::{
    PgError, Worker,
    report::{StoppedBecause, Summary, progress, summary},
};
use crate::{
    postgres::{answered, describe_pool},
    watchdog::{self, Depth, SweepError},
};

const FORGET: &str = sql!("run/forget_unclaimable");

/// Bounds of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Stop after so many pastes.
    pub limit: Option<u64>,
    /// Stop at this time.
    pub deadline: Option<Instant>,
    /// Go on although the brake says no.
    pub override_brake: bool,
}

impl Worker {
    /// Drains what has expired, and says what was done and why it stopped.
    pub async fn run(self: &Arc<Self>, options: Options) -> Summary {
        let started = Instant::now();
        self.override_brake.store(options.override_brake, Ordering::Release);
        let heartbeat = tokio::spawn(Arc::clone(self).keep_alive());
        let bar = progress::start(Arc::clone(self));
        let reset = self.sweep_at_start().await;
        let mut batches = Drain::new(Arc::clone(self), options);
        let stop = batches.drain().await;
        batches.close().await;
        heartbeat.abort();
        progress::end(bar);
        let mut summary = self.summarise(stop, started.elapsed()).await;
        summary.claims_reset_at_start = reset as u64;
        // Unless Postgres did not answer a moment ago.
        if summary.left.is_some()
            && let Err(error) = answered(self.record_end(&summary)).await
        {
            warn!("this run's end could not be recorded: {}", describe_pool(&error));
        }
        summary
    }

    pub(in crate::worker) fn brake_is_overridden(&self) -> bool {
        self.override_brake.load(Ordering::Acquire)
    }

    /// For people who have cron only: a run recovers what an earlier one left behind.
    async fn sweep_at_start(&self) -> usize {
        let swept = async {
            let (pool, settings) = (&self.pool, &self.settings);
            watchdog::let_workers_heartbeat_first(pool, settings, &self.shutdown.stop).await?;
            let swept = watchdog::sweep(pool, settings, Depth::Thorough).await?;
            pool.get().await?.execute(FORGET, &[]).await?;
            Ok::<_, SweepError>(swept)
        };
        let swept = tokio::select! {
            swept = swept => swept,
            () = self.shutdown.stop.cancelled() => return 0,
        };
        match swept {
            Ok(swept) => swept.reset.claims,
            Err(error) => {
                warn!("the sweep at start did not succeed: {error}");
                0
            }
        }
    }

    async fn record_end(&self, summary: &Summary) -> Result<(), PgError> {
        let client = self.pool.get().await?;
        Ok(self.report_end(&**client, summary).await?)
    }

    async fn summarise(&self, (because, error): Stop, elapsed: Duration) -> Summary {
        let left_behind = self.leave_nothing_claimed().await.err();
        let mut figures = self.tally.figures();
        figures.waited.insert("s3_pace", self.objects.paced());
        figures.waited.retain(|_, time| time.as_millis() > 0);
        let unnamed = figures.failed_count - figures.failed.len() as u64;
        let remaining = match figures.failed.is_empty() && figures.suspected.is_empty() {
            true => Ok(0),
            false => answered(self.still_there(&figures)).await.map(|named| named + unnamed),
        };
        let (suspected, stranded) = (figures.suspected.len() as u64, figures.stranded);
        let mut summary = figures.into_summary(self.id, because, error, elapsed);
        summary.left = answered(self.left()).await.ok();
        let remaining = remaining.unwrap_or(summary.rows_failed.max(suspected));
        summary.rows_failed = remaining;
        if remaining > 0 && because == StoppedBecause::Drained {
            summary.stopped_because = StoppedBecause::Failed;
            summary.error = Some(format!(
                "{remaining} pastes could not be deleted in this run; their last_error says why"
            ));
        }
        if stranded > 0 && summary.stopped_because == StoppedBecause::Drained {
            summary.stopped_because = StoppedBecause::Failed;
            summary.error = Some(format!(
                "{stranded} pastes could not be put back, because other transactions hold them or \
                 a trigger refuses it; a later sweep tries again"
            ));
        }
        if let Some(reason) = left_behind {
            let earlier = summary.error.map(|error| format!("{error}; ")).unwrap_or_default();
            summary.error = Some(format!("{earlier}{reason}"));
            summary.stopped_because = StoppedBecause::Failed;
        }
        summary
    }
}
