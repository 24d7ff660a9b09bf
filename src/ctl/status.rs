//! `cleanupctl status`: shows the fleet at a glance, without counting the whole table; `--watch` repeats
//! it.

mod overview;
mod screen;
mod todo;

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use tokio::time::{Instant, sleep_until};

use self::{overview::Overview, screen::Trend};
use crate::{
    cli::{Format, print},
    config::{Settings, parse_duration},
    migrate,
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Status {
    /// Repeat at this interval (default 2s) until Ctrl-C; on a terminal as a live screen.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s",
          value_parser = parse_duration)]
    watch: Option<Duration>,
    /// Output format; `--watch --format json` prints one JSON object per line.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Rows of the first table:
  backlog         pastes that are due; exact up to 100,000, estimated from a
                  sample of the table above that
  oldest overdue  time since the oldest paste of the backlog expired
  rate, drained   pastes deleted per second over the last minute, and when the
                  backlog is empty at that rate
  stuck claims    no heartbeat for longer than watchdog.stuck_after; the
                  watchdog resets them
  backing off     pastes that failed and are retried automatically
  dead letters    pastes that failed permanently and need an operator

The section `to do` lists what needs an operator, with the command. Takes well
under a second on a table of any size, and works on a standby
(target_session_attrs=any).

Examples:
  cleanupctl status                   how did the night go?
  cleanupctl status --watch           a live screen, every two seconds
  cleanupctl status --watch 10s       a live screen, every ten seconds
  cleanupctl status --format json | jq '.backlog, .todo'";

/// The shortest interval of `--watch`.
const FASTEST: Duration = Duration::from_millis(200);

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let mut client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let Some(every) = self.watch else {
            let overview = overview::read(&mut client, settings).await?;
            print(self.format, &overview, |overview| screen::show(overview, None));
            return Ok(0);
        };
        let mut trend = Trend::default();
        loop {
            let next = Instant::now() + every.max(FASTEST);
            let overview = overview::read(&mut client, settings).await?;
            trend.add(&overview);
            if !self.draw(&overview, &trend) {
                return Ok(0);
            }
            sleep_until(next).await;
        }
    }

    /// Returns false if stdout is closed.
    fn draw(&self, overview: &Overview, trend: &Trend) -> bool {
        let live = self.format == Format::Text && stdout().is_terminal();
        // Cursor home, then clear to the end: redraws without flicker.
        let clear = if live { "\x1b[H\x1b[J" } else { "" };
        print(self.format, overview, |overview| {
            format!("{clear}{}", screen::show(overview, Some(trend)))
        })
    }
}
