//! Checks for stuck work: expired leases, dead letters, unclaimable pastes, a pause.

use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::finding::{Outcome, ok, warning};
use crate::{
    config::Settings,
    fleet,
    format::{counted, seconds, thousands},
    printable::printable,
    problem::Problem,
};

const DEAD_WORKERS: &str = sql!("status/dead_workers");
const DEAD_LETTERS: &str = sql!("doctor/dead_letters");
const UNCLAIMABLE: &str = sql!("doctor/unclaimable");
/// There may be millions, and the remedy is the same for all.
const COUNTED: i64 = 10_000;

/// A worker with open claims whose last heartbeat is older than three heartbeat intervals.
struct DeadWorker {
    worker: Uuid,
    pastes: i64,
    heartbeat_age_s: f64,
}

impl From<&Row> for DeadWorker {
    fn from(row: &Row) -> Self {
        Self {
            worker: row.get("worker"),
            pastes: row.get("pastes"),
            heartbeat_age_s: row.get("heartbeat_age_s"),
        }
    }
}

pub(super) async fn claims(client: &Client, settings: &Settings) -> Result<Outcome, Problem> {
    let heartbeats = settings.worker.three_heartbeats().as_secs_f64();
    let rows = client.query(DEAD_WORKERS, &[&heartbeats]).await?;
    let dead: Vec<DeadWorker> = rows.iter().map(DeadWorker::from).collect();
    Ok(judge_claims(&dead, settings, &fleet::read(client).await?))
}

fn judge_claims(dead: &[DeadWorker], settings: &Settings, fleet: &fleet::Fleet) -> Outcome {
    let Some(first) = dead.first() else {
        return ok("every worker with open claims sends heartbeats");
    };
    let others = match dead.len() - 1 {
        0 => String::new(),
        others => format!("; {} more without a heartbeat", counted(others, "worker")),
    };
    let found = format!(
        "worker {} has sent no heartbeat for {} and has claimed {}{others}",
        first.worker,
        seconds(first.heartbeat_age_s),
        counted(first.pastes.unsigned_abs(), "paste")
    );
    // A running watchdog finds it within one tick.
    let watchdog = &settings.watchdog;
    let left = watchdog.stuck_after.as_secs_f64() - first.heartbeat_age_s;
    if left + watchdog.tick.as_secs_f64() < 0.0 {
        return warning(
            found,
            "no watchdog resets it: start cleanup-watchdog, or run `cleanup-watchdog --once`; if that \
             does not help, `cleanupctl doctor --long-transaction 1m` names the transaction that \
             locks its rows",
        );
    }
    let reset = format!("`cleanupctl reset --worker {}`", first.worker);
    let then = fleet.reset_in(left, settings);
    warning(found, format!("{then}; if it is certainly dead: {reset}"))
}

pub(super) async fn unclaimable(client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(UNCLAIMABLE, &[]).await?;
    let Some(error) = row.get::<_, Option<String>>("error") else {
        return Ok(ok("none"));
    };
    let count = counted(row.get::<_, i64>("unclaimable").unsigned_abs(), "paste");
    Ok(warning(
        format!("{count} cannot be claimed; the last error: {}", printable(&error)),
        "a constraint or trigger of pastes refuses the claim's UPDATE: fix it, then run \
         `cleanupctl requeue --all`",
    ))
}

pub(super) async fn dead_letters(client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(DEAD_LETTERS, &[&COUNTED]).await?;
    let Some(oldest) = row.get::<_, Option<String>>("oldest") else {
        return Ok(ok("none"));
    };
    let letters: i64 = row.get("dead_letters");
    let count = match letters < COUNTED {
        true => counted(letters.unsigned_abs(), "paste"),
        false => format!("{} or more pastes", thousands(COUNTED)),
    };
    let error: Option<String> = row.get("its_error");
    Ok(warning(
        format!(
            "{count} failed permanently; the oldest is {}: {}",
            printable(&oldest),
            printable(error.as_deref().unwrap_or("no error recorded"))
        ),
        "`cleanupctl dead-letters` lists them; fix the cause, then run `cleanupctl requeue --all`",
    ))
}

pub(super) async fn pause(client: &Client) -> Result<Outcome, Problem> {
    Ok(match fleet::read(client).await?.paused {
        None => ok("the fleet is not paused"),
        Some(reason) => warning(
            format!("the fleet is paused and deletes nothing; reason: {reason}"),
            "to end the pause: `cleanupctl resume`",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_worker_without_heartbeats_depends_on_their_age() {
        let settings = crate::config::defaults();
        let fleet = fleet::Fleet { watchdog_s_ago: Some(60.0), ..fleet::Fleet::default() };
        let judged = |heartbeat_age_s: f64| {
            let one = DeadWorker { worker: Uuid::nil(), pastes: 1200, heartbeat_age_s };
            format!("{:?}", judge_claims(&[one], &settings, &fleet))
        };
        let hour = judged(3600.0);
        assert!(hour.contains("no heartbeat for 1h") && hour.contains("resets it in 1h"), "{hour}");
        assert!(hour.contains("cleanupctl reset --worker 0000"), "{hour}");
        assert!(judged(7230.0).contains("resets it in 0s"), "the watchdog has a tick to find it");
        assert!(judged(7261.0).contains("cleanup-watchdog --once"), "no watchdog runs");
    }
}
