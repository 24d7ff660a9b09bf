//! `cleanupctl reset`: resets the claims of a dead worker now instead of after `stuck_after`.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, bail};
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
    format::{counted, thousands},
    migrate,
    postgres::{PgError, Target, describe},
};

const CLAIM: &str = sql!("ctl/claim_to_reset");
const OPEN_CLAIMS: &str = sql!("status/open_claims");
const CLAIMS_OF_WORKER: &str = sql!("claim/of_worker");

#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Reset {
    /// Id of the claim, from `cleanupctl explain` or a worker's log.
    #[arg(required_unless_present = "worker")]
    claim: Option<i64>,
    /// Reset all open claims of this worker. The first digits of its UUID are enough.
    #[arg(long, value_name = "UUID", value_parser = parse_worker, conflicts_with = "claim")]
    worker: Option<String>,
    /// Reset even if the worker's heartbeat is recent.
    #[arg(long)]
    force: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const HELP: &str = "\
Does what the watchdog does after watchdog.stuck_after: the claim's pastes are
due again, each with one more attempt counted, and its worker, if it is still
alive, is fenced off. Refused while the last heartbeat is younger than three
heartbeat intervals: stop that worker instead, it releases its claims.

Examples:
  cleanupctl status                       open claims and last heartbeats
  cleanupctl reset 4711                   the machine of its worker is lost
  cleanupctl reset --worker 0f8b6a5e      all open claims of that worker";

#[derive(Serialize)]
struct Done {
    claims: Vec<i64>,
    pastes: usize,
    dead_letters: usize,
    /// Pastes that could not be reset; a later sweep tries again.
    left: usize,
}

impl Reset {
    pub(super) async fn run(self, settings: &Settings) -> Result<u8> {
        let target = Target::new(settings, "cleanupctl", None)?;
        migrate::check(&target.open().await?).await?;
        let connected = target.pool(2)?.get().await;
        let mut client = connected.map_err(PgError::from).with_context(|| target.describe())?;
        let claims = match &self.worker {
            Some(worker) => claims_of(&client, worker).await?,
            None => self.claim.into_iter().collect(),
        };
        let mut done = Done { claims: Vec::new(), pastes: 0, dead_letters: 0, left: 0 };
        // One claim per transaction, as the watchdog does: see `CLAIMS_PER_TRANSACTION`.
        for claim in claims {
            let reset = self.reset(&mut client, settings, claim).await?;
            done.claims.push(claim);
            done.pastes += reset.rows;
            done.dead_letters += reset.dead_letters;
            done.left += reset.left;
        }
        print(self.format, &done, show);
        Ok(u8::from(done.left > 0))
    }

    async fn reset(&self, client: &mut Client, settings: &Settings, id: i64) -> Result<WasReset> {
        let is_locked =
            |error: &tokio_postgres::Error| error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        let failed = |error: tokio_postgres::Error| match is_locked(&error) {
            true => anyhow!(
                "cannot reset claim {id}: other transactions have locked its pastes; `cleanupctl \
                 doctor --long-transaction 1m` names them"
            ),
            false => anyhow!("cannot reset claim {id}: {}", describe(&error)),
        };
        let mut transaction = client.transaction().await.map_err(failed)?;
        let row = transaction.query_opt(CLAIM, &[&id]).await;
        let row = row.map_err(|error| match is_locked(&error) {
            true => anyhow!(
                "claim {id} is locked by a step of its worker or by a sweep of the watchdog: try \
                 again in a few seconds; if the worker is alive, stop it instead"
            ),
            false => failed(error),
        })?;
        let Some(row) = row else {
            bail!("claim {id} does not exist; `cleanupctl status` lists the open claims");
        };
        if row.get("finished") {
            bail!("claim {id} is finished; there is nothing to reset");
        }
        if row.get("reset") {
            bail!("claim {id} was already reset");
        }
        let heartbeat_age_s: f64 = row.get("heartbeat_age_s");
        let heartbeats = settings.worker.three_heartbeats();
        if is_in_the_future(heartbeat_age_s) && !self.force {
            bail!(
                "the last heartbeat of claim {id} is in the future: Postgres' clock was ahead; run \
                 `cleanup-watchdog --once`, which corrects it, and wait for {heartbeats:?}, or use --force"
            );
        }
        if heartbeat_age_s < heartbeats.as_secs_f64() && !self.force {
            bail!(
                "the worker of claim {id} seems to be alive (last heartbeat {:.0} s ago); stop it, and \
                 it releases its claims, or wait until the heartbeat is {heartbeats:?} old, or use --force",
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

fn show(done: &Done) -> String {
    let mut claims = done.claims.clone();
    claims.sort_unstable();
    let names: Vec<String> = claims.iter().map(ToString::to_string).collect();
    let noun = if names.len() == 1 { "claim" } else { "claims" };
    let mut parts = vec![format!("{} reset", counted(done.pastes, "paste"))];
    if done.dead_letters > 0 {
        parts.push(counted(done.dead_letters, "dead letter"));
    }
    if done.left > 0 {
        parts.push(format!(
            "{} could not be reset; a later sweep tries again",
            thousands(done.left)
        ));
    }
    format!("reset {noun} {}: {}", names.join(", "), parts.join(", "))
}

/// Takes a UUID or its first digits, with or without hyphens.
fn parse_worker(text: &str) -> Result<String, String> {
    let digits = text.replace('-', "").to_ascii_lowercase();
    match (4..=32).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        true => Ok(digits),
        false => {
            Err("expected a UUID or at least its first 4 digits, as `cleanupctl status` lists it"
                .into())
        }
    }
}

/// Returns the open claims of the one worker whose UUID begins with these digits.
async fn claims_of(client: &Client, digits: &str) -> Result<Vec<i64>> {
    let failed = |error: tokio_postgres::Error| anyhow!("cannot read claims: {}", describe(&error));
    let workers = client.query(OPEN_CLAIMS, &[]).await.map_err(failed)?;
    let workers: BTreeSet<Uuid> = workers
        .iter()
        .map(|row| row.get("worker"))
        .filter(|worker: &Uuid| worker.simple().to_string().starts_with(digits))
        .collect();
    let mut workers = workers.into_iter();
    let worker = match (workers.next(), workers.next()) {
        (Some(worker), None) => worker,
        (Some(first), Some(second)) => {
            bail!(
                "several workers begin with {digits}, for example {first} and {second}: add digits"
            )
        }
        (None, _) => bail!(
            "worker {digits} has no open claim; `cleanupctl status` lists the workers that have"
        ),
    };
    let known: &[i64] = &[];
    let rows = client.query(CLAIMS_OF_WORKER, &[&worker, &known]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}
