//! The resident scheduler: the same run, on a cron expression.

mod ticks;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use chrono::Utc;
use tokio::sync::mpsc::{Sender, channel};
use tokio_cron_scheduler::{Job, JobScheduler};
use tracing::{error, info, warn};

pub use self::ticks::Ticks;
use super::{
    Worker,
    report::{Summary, run_record::record_failed_start},
    run::Options,
};
use crate::{backoff::Retries, config::Settings, shutdown::Shutdown};

/// Runs on every tick until a signal stops it. A tick during a run is skipped.
pub async fn schedule(
    settings: Arc<Settings>,
    shutdown: Shutdown,
    options: impl Fn() -> Result<Options>,
    report: impl Fn(&Summary),
) -> Result<()> {
    // A dependency that is unavailable is reported now, not at midnight.
    drop(Worker::start(Arc::clone(&settings), shutdown.clone()).await?);
    let running = Arc::new(AtomicBool::new(false));
    let (ticks, mut due) = channel(1);
    let mut scheduler = JobScheduler::new().await.context("cannot start the scheduler")?;
    scheduler.add(job(&settings, Arc::clone(&running), ticks)?).await?;
    scheduler.start().await?;
    loop {
        log_next_run(&settings);
        tokio::select! {
            () = shutdown.stop.cancelled() => break,
            _ = due.recv() => {}
        }
        match start(&settings, &shutdown).await {
            Ok(worker) => report(&worker.run(options()?).await),
            Err(failure) => {
                error!("the scheduled run could not start: {failure:#}");
                record_failed_start(&settings, &failure).await;
            }
        }
        running.store(false, Ordering::Release);
    }
    scheduler.shutdown().await.context("cannot stop the scheduler")
}

fn log_next_run(settings: &Settings) {
    let (cron, zone) = (&settings.schedule.cron, settings.schedule.timezone);
    if let Some(next) = Ticks::new(cron, zone, Utc::now()).ok().and_then(|ticks| ticks.next()) {
        let next = next.with_timezone(&zone).format("%Y-%m-%d %H:%M:%S %Z");
        info!(cron, timezone = zone.name(), "next run: {next} (schedule.cron is {cron:?})");
    }
}

/// The next tick may be a day away: a dependency that is unavailable now is waited for.
async fn start(settings: &Arc<Settings>, shutdown: &Shutdown) -> Result<Arc<Worker>> {
    let mut retries = Retries::within(settings.worker.outage_timeout);
    loop {
        let failure = match Worker::start(Arc::clone(settings), shutdown.clone()).await {
            Ok(worker) => return Ok(worker),
            Err(failure) => failure,
        };
        if retries.are_over() || shutdown.stop.is_cancelled() {
            return Err(failure);
        }
        if retries.none_yet() {
            warn!("the scheduled run cannot start yet, retrying: {failure:#}");
        }
        tokio::select! {
            () = retries.pause() => {}
            () = shutdown.stop.cancelled() => {}
        }
    }
}

/// The library only provides a tick every second. Its own cron expressions use the UTC offset of the moment
/// when the job was added, so that after a clock change they are an hour off.
fn job(settings: &Settings, running: Arc<AtomicBool>, ticks: Sender<()>) -> Result<Job> {
    let cron = settings.schedule.cron.as_str();
    let invalid = || format!("schedule.cron {cron:?} is not valid");
    let mut due = Ticks::new(cron, settings.schedule.timezone, Utc::now()).with_context(invalid)?;
    let job = Job::new("* * * * * *", move |_, _| {
        if !due.is_due(Utc::now()) {
            return;
        }
        if running.swap(true, Ordering::AcqRel) {
            warn!("skipped a scheduled run: the last one is still running");
        } else if ticks.try_send(()).is_err() {
            warn!("skipped a scheduled run: this process is stopping");
        }
    });
    job.context("cannot add the job to the scheduler")
}
