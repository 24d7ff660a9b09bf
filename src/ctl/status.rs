//! `cleanupctl status`: the fleet at a glance, never by a full count; `--watch` keeps looking.

mod look;
mod screen;

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use tokio::time::{Instant, sleep_until};

use self::{look::Seen, screen::Trend};
use crate::{
    cli::{Format, print},
    config::{Settings, parse_duration},
    migrate,
};

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Status {
    /// Look again every so often, until Ctrl-C; on a terminal as a live screen.
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s",
          value_parser = parse_duration)]
    watch: Option<Duration>,
    /// How the status is printed; with --watch, one JSON object a line.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
What it shows:
  backlog         due right now; counted up to 100,000, estimated from a sample of the table beyond
  oldest overdue  how long the paste that comes next has been due
  rate, drained   pastes a second over the last minute, and when the backlog is gone at that rate
  stuck claims    silent for longer than watchdog.stuck_after; the watchdog resets them
  backing off     failed, will be tried again by themselves
  dead letters    failed for good, wait for a person

Under `to do` is what a person should do something about, with the command. Costs the database well
under a second, however large the table is; a standby will do (target_session_attrs=any).

Examples:
  cleanupctl status                   how did the night go?
  cleanupctl status --watch           a live screen
  cleanupctl status --watch 10s
  cleanupctl status --format json | jq '.backlog, .todo'";

/// Nothing is gained by looking more often.
const FASTEST: Duration = Duration::from_millis(200);

impl Status {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let mut client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let Some(every) = self.watch else {
            let seen = look::look(&mut client, settings).await?;
            print(self.format, &seen, |seen| screen::show(seen, None));
            return Ok(0);
        };
        let mut trend = Trend::default();
        loop {
            let next = Instant::now() + every.max(FASTEST);
            let seen = look::look(&mut client, settings).await?;
            trend.add(&seen);
            if !self.draw(&seen, &trend) {
                return Ok(0);
            }
            sleep_until(next).await;
        }
    }

    /// False: nobody watches any more.
    fn draw(&self, seen: &Seen, trend: &Trend) -> bool {
        let live = self.format == Format::Text && stdout().is_terminal();
        // Home, and clear what is left of the last screen: no flicker.
        let clear = if live { "\x1b[H\x1b[J" } else { "" };
        print(self.format, seen, |seen| format!("{clear}{}", screen::show(seen, Some(trend))))
    }
}
