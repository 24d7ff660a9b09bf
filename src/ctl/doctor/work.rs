//! The work itself: what waits for a person, now.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::{
    finding::{Outcome, ok, warning},
    postgres::failed,
};
use crate::{config::Settings, fleet, format::thousands, printable::printable};

const SILENT: &str = sql!("fleet/dead_workers");
const DEAD_LETTERS: &str = sql!("doctor/dead_letters");
const UNCLAIMABLE: &str = sql!("doctor/unclaimable");
/// There may be millions, and the remedy is the same.
const COUNTED: i64 = 10_000;

/// A worker that holds claims and has been silent for longer than one that lives would be.
struct Silent {
    worker: Uuid,
    pastes: i64,
    heartbeat_age_s: f64,
}

impl From<&Row> for Silent {
    fn from(row: &Row) -> Self {
        Self {
            worker: row.get("worker"),
            pastes: row.get("pastes"),
            heartbeat_age_s: row.get("heartbeat_age_s"),
        }
    }
}

pub(super) async fn claims(client: &Client, settings: &Settings) -> Result<Outcome> {
    let heartbeats = settings.worker.three_heartbeats().as_secs_f64();
    let rows = client.query(SILENT, &[&heartbeats]).await.map_err(failed)?;
    let silent: Vec<Silent> = rows.iter().map(Silent::from).collect();
    Ok(judge_expired(&silent, settings, &fleet::read(client).await?))
}

fn judge_expired(silent: &[Silent], settings: &Settings, fleet: &fleet::Fleet) -> Outcome {
    let Some(first) = silent.first() else {
        return ok("no worker is silent");
    };
    let others = match silent.len() - 1 {
        0 => String::new(),
        others => format!(" ({others} more workers, too)"),
    };
    let found = format!(
        "worker {} has been silent for {}{others}, and holds {} pastes",
        first.worker,
        spell(first.heartbeat_age_s),
        thousands(first.pastes.unsigned_abs())
    );
    // A watchdog that runs has a tick to find it.
    let watchdog = &settings.watchdog;
    let left = watchdog.stuck_after.as_secs_f64() - first.heartbeat_age_s;
    if left + watchdog.tick.as_secs_f64() < 0.0 {
        return warning(
            found,
            "no watchdog resets it: start cleanup-watchdog, or run `cleanup-watchdog --once`; if that \
             does not help, `cleanupctl doctor --long-transaction 1m` names who holds its rows",
        );
    }
    let reset = format!("`cleanupctl reset --worker {}`", first.worker);
    let then = fleet.reset_in(left, settings);
    warning(found, format!("{then}; if it is dead for sure: {reset}"))
}

fn spell(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}

pub(super) async fn unclaimable(client: &Client) -> Result<Outcome> {
    let row = client.query_one(UNCLAIMABLE, &[]).await.map_err(failed)?;
    let Some(error) = row.get::<_, Option<String>>("error") else {
        return Ok(ok("none"));
    };
    let count = thousands(row.get::<_, i64>("unclaimable").unsigned_abs());
    Ok(warning(
        format!("{count} pastes cannot be claimed, the last one because: {}", printable(&error)),
        "a constraint or trigger of pastes refuses the claim's UPDATE: fix that, then run \
         `cleanupctl requeue --all`",
    ))
}

pub(super) async fn dead_letters(client: &Client) -> Result<Outcome> {
    let row = client.query_one(DEAD_LETTERS, &[&COUNTED]).await.map_err(failed)?;
    let Some(oldest) = row.get::<_, Option<String>>("oldest") else {
        return Ok(ok("none"));
    };
    let letters: i64 = row.get("dead_letters");
    let count = thousands(letters.unsigned_abs());
    let count = if letters < COUNTED { count } else { format!("{count} or more") };
    let error: Option<String> = row.get("its_error");
    Ok(warning(
        format!(
            "{count} pastes failed for good, {} first: {}",
            printable(&oldest),
            printable(error.as_deref().unwrap_or("no error"))
        ),
        "`cleanupctl dead-letters` lists them; when the cause is fixed: `cleanupctl requeue --all`",
    ))
}

pub(super) async fn pause(client: &Client) -> Result<Outcome> {
    Ok(match fleet::read(client).await?.paused {
        None => ok("the fleet is not paused"),
        Some(reason) => warning(
            format!("the fleet is paused, and deletes nothing: {reason}"),
            "when that is over: `cleanupctl resume`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_silent_worker_means_depends_on_for_how_long() {
        let settings = crate::config::defaults();
        let fleet = fleet::Fleet { watchdog_s_ago: Some(60.0), ..fleet::Fleet::default() };
        let said = |heartbeat_age_s: f64| {
            let one = Silent { worker: Uuid::nil(), pastes: 1200, heartbeat_age_s };
            format!("{:?}", judge_expired(&[one], &settings, &fleet))
        };
        let hour = said(3600.0);
        assert!(hour.contains("silent for 1h") && hour.contains("resets it in 1h"), "{hour}");
        assert!(hour.contains("cleanupctl reset --worker 0000"), "{hour}");
        assert!(said(7230.0).contains("resets it in 0s"), "the watchdog has a tick to look");
        assert!(said(7261.0).contains("cleanup-watchdog --once"), "nobody looked");
    }
}
