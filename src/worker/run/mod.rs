//! One run, from the sweep at its start to the summary at its end.
//!
//! `drain` is the loop. Each round checks, in this order: must the run stop (`stop`, `brake`), is a
//! dependency unavailable (`outage`), does every paste fail (`every_paste_fails`), does the run
//! only repeat what fails (`fruitless`), must it wait (`throttle`); then it claims, or queries what
//! is due next (`next_due`). `in_flight` has the batches that are running.

pub mod brake;
mod drain;
pub mod dry_run;
mod every_paste_fails;
mod fruitless;
mod in_flight;
mod next_due;
mod outage;
mod stop;
mod throttle;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::warn;

use self::{drain::Drain, in_flight::out_of_time, next_due::stranded, stop::Stop};
use super::{
    Worker,
    report::{
        Left, Summary,
        left::{failed_and_left, left},
        progress,
    },
};
use crate::{
    format::counted,
    postgres::{PgError, answered},
    watchdog::{self, Depth, SweepError},
};

const FORGET_UNCLAIMABLE: &str = sql!("run/forget_unclaimable");

/// Bounds of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The maximum number of pastes to delete.
    pub limit: Option<u64>,
    /// When to stop.
    pub deadline: Option<Instant>,
    /// Ignore the safety brake.
    pub override_brake: bool,
}

impl Worker {
    /// Drains the expired pastes. Returns what was done and why it stopped.
    pub async fn run(self: &Arc<Self>, options: Options) -> Summary {
        let started = Instant::now();
        self.steps.decrement.ignore_missing_content(options.override_brake);
        let worker = Arc::clone(self);
        let heartbeat = tokio::spawn(async move { worker.heartbeat.run().await });
        let bar = progress::start(Arc::clone(self));
        let reset = self.sweep_at_start(options.deadline).await;
        let mut drain = Drain::new(Arc::clone(self), options);
        let stop = drain.drain().await;
        drain.close().await;
        heartbeat.abort();
        progress::end(bar);
        let mut summary = self.summarise(stop, started.elapsed()).await;
        summary.claims_reset_at_start = reset as u64;
        // Unless Postgres did not answer a moment ago.
        if summary.left.is_some()
            && let Err(error) = answered(self.record.write_end(&self.pool, &summary)).await
        {
            warn!("could not record the end of this run: {error}");
        }
        summary
    }

    /// For installations without a watchdog: a run recovers what an earlier one left behind.
    async fn sweep_at_start(&self, deadline: Option<Instant>) -> usize {
        let swept = async {
            let (pool, settings) = (&self.pool, &self.settings);
            watchdog::let_workers_heartbeat_first(pool, settings, &self.shutdown.stop).await?;
            let swept = watchdog::sweep(pool, settings, Depth::Thorough).await?;
            pool.get().await?.execute(FORGET_UNCLAIMABLE, &[]).await?;
            Ok::<_, SweepError>(swept)
        };
        let swept = tokio::select! {
            swept = swept => swept,
            () = self.shutdown.stop.cancelled() => return 0,
            () = out_of_time(deadline) => return 0,
        };
        match swept {
            Ok(swept) => swept.reset.claims,
            Err(error) => {
                warn!(
                    "the sweep at the start of the run failed: {error}; this run does not reset \
                     the claims of dead workers"
                );
                0
            }
        }
    }

    async fn left_at_end(&self) -> Result<Left, PgError> {
        let stranded = stranded(self).await?.map_or(0, |stranded| stranded.pastes);
        Ok(Left { stranded, ..left(self).await? })
    }

    async fn summarise(&self, (because, error): Stop, elapsed: Duration) -> Summary {
        let left_open = self.steps.release.everything(&self.shutdown.stop).await.err();
        let mut stats = self.tally.stats();
        stats.waited.insert("s3_pace", self.objects.paced());
        stats.waited.retain(|_, time| time.as_millis() > 0);
        let unnamed = stats.failed_count - stats.failed.len() as u64;
        let remaining = match stats.failed.is_empty() && stats.suspected.is_empty() {
            true => Ok(0),
            false => answered(failed_and_left(self, &stats)).await.map(|named| named + unnamed),
        };
        let (suspected, stranded) = (stats.suspected.len() as u64, stats.stranded);
        let mut summary = stats.into_summary(self.id, because, error, elapsed);
        summary.left = answered(self.left_at_end()).await.ok();
        summary.rows_failed = remaining.unwrap_or(summary.rows_failed.max(suspected));
        if summary.rows_failed > 0 {
            summary.fail_if_drained(format!(
                "{} could not be deleted in this run; the log has the errors, `cleanupctl explain \
                 SHORT_CODE` shows that of one paste, `cleanupctl dead-letters` lists those that \
                 failed permanently",
                counted(summary.rows_failed, "paste")
            ));
        }
        if stranded > 0 {
            summary.fail_if_drained(format!(
                "{} could not be reset, because other transactions have locked them or \
                 a trigger refuses it; a later sweep tries again",
                counted(stranded, "paste")
            ));
        }
        if let Some(reason) = left_open {
            summary.fail(reason.to_string());
        }
        summary
    }
}
