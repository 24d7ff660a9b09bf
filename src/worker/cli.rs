//! The command line of `cleanup-worker`.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use chrono::{DateTime, NaiveTime, Utc};
use chrono_tz::Tz;
use clap::{Args, Parser, Subcommand};
use tokio::time::Instant;

use super::{
    Worker,
    report::{run_record::record_failed_start, text},
    run::{Options, dry_run},
    schedule::schedule,
};
use crate::{
    cli::{Common, Format, complain, print},
    config::{ConfigError, Settings, parse_duration},
    format::{bytes, counted},
    migrate,
    postgres::Target,
    shutdown::Shutdown,
};

/// Erases expired pastes: rows in Postgres, objects in S3, cache entries in Redis.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub struct WorkerCli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Settings: flags override CLEANUP_<SECTION>_<KEY> variables, these override
--config FILE. Set first: DATABASE_URL, REDIS_URL, S3_BUCKET, and
AWS_ENDPOINT_URL for MinIO and other stores. DATABASE_URL_FILE and
REDIS_URL_FILE name files that contain the URLs.

Exit codes:
  0  drained
  1  failed, or some pastes could not be deleted
  2  wrong usage or settings
  3  stopped early with a backlog left: limit, deadline, signal, paused, or
     claims of a dead worker
  4  stopped by the safety brake

Examples:
  cleanup-worker run --dry-run          what would be deleted
  cleanup-worker run --until 06:00      the nightly cron job
  cleanup-worker run --limit 1000       a first try
  cleanup-worker run --max-rate 2000    slowly, beside a busy service
  cleanup-worker run --override-brake   when most of the table really has expired
  cleanup-worker run --format json | jq .rows_deleted
  CLEANUP_SCHEDULE_TIMEZONE=Europe/Berlin cleanup-worker schedule";

#[derive(Subcommand, Debug)]
enum Command {
    /// Delete all expired pastes, print a summary and exit. For cron.
    Run(RunArgs),
    /// Stay resident and run on schedule.cron (default: every midnight, UTC).
    Schedule(RunArgs),
}

#[derive(Args, Debug)]
struct RunArgs {
    /// Maximum number of pastes to delete.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Maximum duration of the run, for example 4h.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    run_time: Option<Duration>,
    /// Time of day at which to stop, in schedule.timezone, for example 06:00.
    #[arg(long, value_name = "HH:MM", value_parser = parse_time)]
    until: Option<NaiveTime>,
    /// Pastes per claim (worker.batch_size).
    #[arg(long, value_name = "N")]
    batch_size: Option<u32>,
    /// Batches in flight at once (worker.concurrency).
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// Maximum pastes per second (throttle.max_rate); 0 = no limit.
    #[arg(long, value_name = "N")]
    max_rate: Option<u32>,
    /// Ignore the safety brake (brake.max_share, brake.max_rows).
    #[arg(long)]
    override_brake: bool,
    /// Print what would be deleted right now; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Format of the summary.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl WorkerCli {
    /// Runs the command. Returns the exit code.
    pub async fn run(self) -> Result<u8> {
        let mut settings = self.common.settings()?;
        let (Command::Run(args) | Command::Schedule(args)) = &self.command;
        args.apply(&mut settings)?;
        let settings = Arc::new(settings);
        match &self.command {
            Command::Run(args) | Command::Schedule(args) if args.dry_run => {
                print_dry_run(&settings, args).await
            }
            Command::Run(args) => {
                let started = Worker::start(Arc::clone(&settings), Shutdown::on_signals()?).await;
                let worker = match started {
                    Ok(worker) => worker,
                    Err(failure) => {
                        record_failed_start(&settings, &failure).await;
                        return Err(failure);
                    }
                };
                let summary = worker.run(args.options(&settings)).await;
                print(args.format, &summary, text::show);
                if let Some(error) = &summary.error {
                    complain("cleanup-worker", error);
                }
                Ok(summary.stopped_because.exit_code())
            }
            Command::Schedule(args) => {
                let shutdown = Shutdown::on_signals()?;
                let report = |summary: &_| {
                    print(args.format, summary, text::show);
                };
                let options = || Ok(args.options(&settings));
                schedule(Arc::clone(&settings), shutdown, options, report).await?;
                Ok(0)
            }
        }
    }
}

impl RunArgs {
    fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        settings.worker.batch_size = self.batch_size.unwrap_or(settings.worker.batch_size);
        settings.worker.concurrency = self.concurrency.unwrap_or(settings.worker.concurrency);
        settings.throttle.max_rate = self.max_rate.unwrap_or(settings.throttle.max_rate);
        settings.validate()
    }

    fn options(&self, settings: &Settings) -> Options {
        let until = self
            .until
            .map(|time| until(time, Utc::now().with_timezone(&settings.schedule.timezone)));
        let left = [self.run_time, until].into_iter().flatten().min();
        let deadline = left.map(|left| Instant::now() + left);
        Options { limit: self.limit, deadline, override_brake: self.override_brake }
    }
}

async fn print_dry_run(settings: &Settings, args: &RunArgs) -> Result<u8> {
    let target = Target::new(settings, "cleanup-worker", None)?;
    let mut client = target.open().await?;
    migrate::check(&client).await?;
    let would = dry_run::dry_run(&mut client, &settings.brake, args.limit).await?;
    print(args.format, &would, |would| {
        let brake = would.brake.as_ref();
        format!(
            "would delete {} and {} ({}); nothing was changed{}",
            counted(would.rows, "paste"),
            counted(would.objects, "object"),
            bytes(u64::try_from(would.bytes).unwrap_or_default()),
            brake
                .map(|reason| format!("\nthe safety brake would stop it: {reason}"))
                .unwrap_or_default()
        )
    });
    Ok(0)
}

fn parse_time(text: &str) -> Result<NaiveTime, String> {
    NaiveTime::parse_from_str(text, "%H:%M")
        .map_err(|_| format!("{text:?} is not a time of day; write 06:00"))
}

/// Returns how long it is until that time of day: today, tomorrow, or the day after if a clock change
/// skips it.
fn until(time: NaiveTime, now: DateTime<Tz>) -> Duration {
    let today = now.date_naive();
    let days = today.iter_days().take(3);
    let moments =
        days.filter_map(|day| day.and_time(time).and_local_timezone(now.timezone()).earliest());
    let mut waits = moments.filter_map(|moment| (moment - now).to_std().ok());
    waits.find(|wait| !wait.is_zero()).unwrap_or(Duration::from_secs(24 * 3600))
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;

    use super::*;

    fn hours_until(time: &str, day: u32, hour: u32) -> f64 {
        let zone = chrono_tz::Europe::Berlin;
        let now = zone.with_ymd_and_hms(2026, 3, day, hour, 0, 0).single().expect("a time");
        until(parse_time(time).expect("a time"), now).as_secs_f64() / 3600.0
    }

    #[test]
    fn until_is_today_if_it_is_still_to_come_and_tomorrow_otherwise() {
        assert_eq!(hours_until("06:00", 10, 0), 6.0);
        assert_eq!(hours_until("06:00", 10, 7), 23.0);
        assert_eq!(hours_until("06:00", 10, 6), 24.0);
    }

    #[test]
    fn until_counts_the_hour_that_a_clock_change_takes() {
        // Clocks go from 02:00 to 03:00 on 2026-03-29.
        assert_eq!(hours_until("06:00", 29, 0), 5.0);
        assert_eq!(hours_until("02:30", 29, 0), 25.5, "skipped that night");
    }
}
