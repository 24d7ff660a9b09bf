//! `cleanupctl reset`: a claim whose worker is known to be dead, now instead of after `stuck_after`.

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde::Serialize;
use tokio_postgres::error::SqlState;

use crate::{
    cli::{Format, print, thousands},
    config::Settings,
    migrate,
    postgres::{Target, describe},
    watchdog::reset::{LockedClaim, Why, reset},
};

const CLAIM: &str = include_str!("../../sql/queries/claim_to_reset.sql");

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Reset {
    /// The claim's number, from `cleanupctl status` or a worker's log.
    claim: i64,
    /// Although its worker has been heard of lately.
    #[arg(long)]
    force: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Does what the watchdog would do after watchdog.stuck_after: the claim's pastes are due again, each
with one attempt more, and its worker, should it still live, is fenced off. A claim whose worker beat
within the last three heartbeats is refused: stop that worker instead, it gives back what it holds.

Examples:
  cleanupctl status                  open claims and their last beats
  cleanupctl reset 4711              its worker's machine is gone";

#[derive(Serialize)]
struct Done {
    claim: i64,
    pastes: usize,
    dead_letters: usize,
}

impl Reset {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let target = Target::new(settings, "cleanupctl", None)?;
        migrate::check(&target.open().await?).await?;
        let mut client = target.pool(2)?.get().await?;
        let id = self.claim;
        let failed = |error: tokio_postgres::Error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                anyhow!("claim {id} is being worked on at this moment: its worker lives")
            }
            _ => anyhow!("cannot reset claim {id}: {}", describe(&error)),
        };
        let transaction = client.transaction().await.map_err(failed)?;
        let row = transaction.query_opt(CLAIM, &[&id]).await.map_err(failed)?;
        let Some(row) = row else {
            bail!("there is no claim {id}; `cleanupctl status` shows the open ones");
        };
        if row.get("finished") {
            bail!("claim {id} is finished: nothing to reset");
        }
        if row.get("reset") {
            bail!("claim {id} was reset already");
        }
        let silent_s: f64 = row.get("silent_s");
        let beats = settings.worker.three_heartbeats();
        if silent_s < beats.as_secs_f64() && !self.force {
            bail!(
                "the worker of claim {id} beat {silent_s:.0} s ago and seems to live: stop it, and \
                 it gives back what it holds; or wait for {beats:?} of silence, or use --force"
            );
        }
        let claim = LockedClaim::from(&row);
        let done =
            reset(&transaction, settings, &claim, Why::WorkerSilent).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        let done = Done { claim: id, pastes: done.rows, dead_letters: done.dead_letters };
        print(self.format, &done, |done| {
            format!("reset claim {}: {} pastes are due again", done.claim, thousands(done.pastes))
        });
        Ok(0)
    }
}
