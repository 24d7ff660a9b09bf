//! `cleanupctl pause` and `resume`: stops the whole fleet, and lets it run again.

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Format, print},
    config::{ConfigError, Settings},
    migrate,
    postgres::describe,
    printable::printable,
};

const PAUSE: &str = sql!("fleet/pause");
const RESUME: &str = sql!("fleet/resume");

#[derive(Args, Debug)]
#[command(after_help = PAUSE_HELP)]
pub(super) struct Pause {
    /// Why the fleet is paused; shown by every worker and by `status`.
    #[arg(long)]
    reason: String,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const PAUSE_HELP: &str = "\
Workers check every two seconds: they finish their open batches, claim no
more and exit with 3. A run that starts while the fleet is paused stops at
once and prints the reason. The watchdog keeps running.

Examples:
  cleanupctl pause --reason \"restoring a backup, ask Ada\"
  cleanupctl resume";

#[derive(Args, Debug)]
pub(super) struct Resume {
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize)]
struct Now {
    paused: bool,
    /// The command changed the state.
    changed: bool,
    reason: Option<String>,
}

impl Pause {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        if self.reason.trim().is_empty() {
            let remedy = "give a reason for the engineer on call";
            return Err(ConfigError::new("--reason is empty", remedy).into());
        }
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let paused = client.execute(PAUSE, &[&self.reason]).await;
        paused.map_err(|error| anyhow!("cannot pause the fleet: {}", describe(&error)))?;
        let now = Now { paused: true, changed: true, reason: Some(printable(&self.reason)) };
        print(self.format, &now, |now| {
            format!("the fleet is paused: {}", now.reason.as_deref().unwrap_or_default())
        });
        Ok(0)
    }
}

impl Resume {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let client = super::connect(settings).await?;
        migrate::check(&client).await?;
        let resumed = client.execute(RESUME, &[]).await;
        let resumed =
            resumed.map_err(|error| anyhow!("cannot resume the fleet: {}", describe(&error)))?;
        let now = Now { paused: false, changed: resumed > 0, reason: None };
        print(self.format, &now, |now| {
            match now.changed {
            true => {
                "resumed the fleet; no run was started: the next one, or `cleanup-worker run`, claims again"
                    .into()
            },
            false => "the fleet was not paused".into(),
        }
        });
        Ok(0)
    }
}
