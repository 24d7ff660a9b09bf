//! `cleanupctl reset`: what a worker that is known to be dead holds, now instead of after `stuck_after`.

use anyhow::{Result, anyhow, bail};
use clap::Args;
use deadpool_postgres::Client;
use serde::Serialize;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::{
    claim::reset::{LockedClaim, Reset as WasReset, ResetReason, reset},
    cli::{Format, print},
    config::Settings,
    fleet::snapshot::is_in_the_future,
    format::thousands,
    migrate,
    postgres::{Target, describe},
};

const CLAIM: &str = sql!("ctl/claim_to_reset");
const CLAIMS_OF_WORKER: &str = sql!("claim/of_worker");

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Reset {
    /// The claim's number, from `cleanupctl status` or a worker's log.
    #[arg(required_unless_present = "worker")]
    claim: Option<i64>,
    /// All open claims of this worker.
    #[arg(long, value_name = "UUID", conflicts_with = "claim")]
    worker: Option<Uuid>,
    /// Although its worker has been heard of lately.
    #[arg(long)]
    force: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Does what the watchdog would do after watchdog.stuck_after: the claim's pastes are due again, each
with one attempt more, and its worker, should it still live, is fenced off. A claim whose worker heartbeat
within the last three heartbeats is refused: stop that worker instead, it releases what it holds.

Examples:
  cleanupctl status                  open claims and their last heartbeats
  cleanupctl reset 4711              its worker's machine is gone
  cleanupctl reset --worker 0f8b6a5e-…    all that it held";

#[derive(Serialize)]
struct Done {
    claims: Vec<i64>,
    pastes: usize,
    dead_letters: usize,
}

impl Reset {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let target = Target::new(settings, "cleanupctl", None)?;
        migrate::check(&target.open().await?).await?;
        let mut client = target.pool(2)?.get().await?;
        let claims = match self.worker {
            Some(worker) => claims_of(&client, worker).await?,
            None => self.claim.into_iter().collect(),
        };
        let mut done = Done { claims: Vec::new(), pastes: 0, dead_letters: 0 };
        // One by one, as the watchdog does: see `CLAIMS_PER_TRANSACTION`.
        for claim in claims {
            let reset = self.reset(&mut client, settings, claim).await?;
            done.claims.push(claim);
            done.pastes += reset.rows;
            done.dead_letters += reset.dead_letters;
        }
        print(self.format, &done, |done| {
            let claims: Vec<String> = done.claims.iter().map(ToString::to_string).collect();
            let claims = claims.join(", ");
            format!("reset claim {claims}: {} pastes are due again", thousands(done.pastes))
        });
        Ok(0)
    }

    async fn reset(&self, client: &mut Client, settings: &Settings, id: i64) -> Result<WasReset> {
        let failed = |error: tokio_postgres::Error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                anyhow!("claim {id} is being worked on at this moment: its worker lives")
            }
            _ => anyhow!("cannot reset claim {id}: {}", describe(&error)),
        };
        let mut transaction = client.transaction().await.map_err(failed)?;
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
        let heartbeat_age_s: f64 = row.get("heartbeat_age_s");
        let heartbeats = settings.worker.three_heartbeats();
        if is_in_the_future(heartbeat_age_s) && !self.force {
            bail!(
                "the last heartbeat of claim {id} is in the future: the server's clock was ahead; run \
                 `cleanup-watchdog --once`, which corrects it, and wait for {heartbeats:?}, or use --force"
            );
        }
        if heartbeat_age_s < heartbeats.as_secs_f64() && !self.force {
            bail!(
                "the worker of claim {id} heartbeat {:.0} s ago and seems to live: stop it, and \
                 it releases what it holds; or wait for {heartbeats:?} of silence, or use --force",
                heartbeat_age_s.max(0.0)
            );
        }
        let claim = LockedClaim::from(&row);
        let done = reset(&mut transaction, settings, &claim, ResetReason::LeaseExpired)
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        Ok(done)
    }
}

async fn claims_of(client: &Client, worker: Uuid) -> Result<Vec<i64>> {
    let known: &[i64] = &[];
    let rows = client.query(CLAIMS_OF_WORKER, &[&worker, &known]).await;
    let rows = rows.map_err(|error| anyhow!("cannot read claims: {}", describe(&error)))?;
    if rows.is_empty() {
        bail!("worker {worker} has no open claim; `cleanupctl status` shows who has");
    }
    Ok(rows.iter().map(|row| row.get("id")).collect())
}
