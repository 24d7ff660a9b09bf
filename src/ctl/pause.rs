//! `cleanupctl pause` and `resume`: stop the whole fleet, and let it go on.

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{Format, print},
    config::Settings,
    migrate,
    postgres::describe,
    printable::printable,
};

const PAUSE: &str = sql!("fleet/pause");
const RESUME: &str = sql!("fleet/resume");

#[derive(Args, Debug)]
#[command(after_help = PAUSE_HELP)]
pub(super) struct Pause {
    /// Why: every worker and `status` name it.
    #[arg(long)]
    reason: String,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const PAUSE_HELP: &str = "\
Workers look every two seconds: they finish what they hold, claim no more and exit 3. Runs that start
while the fleet is paused stop at once, with the reason. The watchdog goes on.

Examples:
  cleanupctl pause --reason \"restoring a backup, ask Ada\"
  cleanupctl resume";

#[derive(Args, Debug)]
pub(super) struct Resume {
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Serialize)]
struct Now {
    paused: bool,
    /// Something was changed.
    changed: bool,
    reason: Option<String>,
}

impl Pause {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        if self.reason.trim().is_empty() {
            bail!("--reason is empty: say why, for whoever is on call");
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
        print(self.format, &now, |now| match now.changed {
            true => "the pause is over: the next run goes on".into(),
            false => "the fleet was not paused".into(),
        });
        Ok(0)
    }
}
