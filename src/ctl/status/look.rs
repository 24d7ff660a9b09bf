//! One look at the fleet, and what a person should do about what is seen.

use anyhow::{Result, anyhow};
use serde::Serialize;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::{
    config::Settings,
    fleet::snapshot::{Snapshot, is_in_the_future},
    fleet::{self, Fleet},
    format::thousands,
    postgres::describe,
    printable::printable,
};

const OPEN_CLAIMS: &str = sql!("fleet/open_claims");
const LAST_RUNS: &str = sql!("fleet/last_runs");
const RUNS_SHOWN: i32 = 5;
/// A run each night is missed after this.
const A_NIGHT_AND_A_DAY_S: f64 = 26.0 * 3600.0;

#[derive(Serialize)]
pub(super) struct Seen {
    pub bucket: Option<String>,
    /// When a watchdog last made its round.
    pub watchdog_s_ago: Option<f64>,
    pub watchdog_in_the_future: bool,
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Pastes a second over the last minute.
    pub rate: f64,
    pub drained_in_s: Option<f64>,
    pub workers: Vec<OpenWorker>,
    pub runs: Vec<Run>,
    pub todo: Vec<Todo>,
}

/// A worker that holds claims.
#[derive(Serialize)]
pub(super) struct OpenWorker {
    pub worker: Uuid,
    pub host: Option<String>,
    pub claims: i64,
    pub pastes: i64,
    pub heartbeat_age_s: f64,
    /// Its last heartbeat is: the server's clock was ahead.
    pub in_the_future: bool,
    pub oldest_claim_s: f64,
    /// The first few, the most silent first.
    pub claim_ids: Vec<i64>,
    pub waiting_for: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Run {
    pub worker: Uuid,
    pub host: Option<String>,
    pub started_utc: String,
    pub took_s: f64,
    /// `running`, `dead`, or why it stopped.
    pub state: String,
    pub error: Option<String>,
    pub rows_deleted: i64,
    pub objects_deleted: i64,
    pub bytes_freed: i64,
    pub rows_failed: i64,
    pub waiting_for: Option<String>,
}

/// Something that waits for a person.
#[derive(Serialize)]
pub(super) struct Todo {
    pub what: String,
    pub remedy: String,
}

pub(super) async fn look(client: &mut Client, settings: &Settings) -> Result<Seen> {
    let failed = |error| anyhow!("status: {}", describe(&error));
    let fleet = fleet::read(client).await?;
    let snapshot = Snapshot::take(client, settings).await.map_err(failed)?;
    let gone_after = settings.worker.three_heartbeats().as_secs_f64();
    let workers = client.query(OPEN_CLAIMS, &[]).await.map_err(failed)?;
    let runs = client.query(LAST_RUNS, &[&RUNS_SHOWN, &gone_after]).await.map_err(failed)?;
    let text = |text: Option<String>| text.map(|text| printable(&text));
    let workers: Vec<OpenWorker> = workers
        .iter()
        .map(|row| OpenWorker {
            worker: row.get("worker"),
            host: text(row.get("host")),
            claims: row.get("claims"),
            pastes: row.get("pastes"),
            heartbeat_age_s: row.get::<_, f64>("heartbeat_age_s").max(0.0),
            in_the_future: is_in_the_future(row.get("heartbeat_age_s")),
            oldest_claim_s: row.get::<_, f64>("oldest_claim_s").max(0.0),
            claim_ids: row.get("claim_ids"),
            waiting_for: text(row.get("waiting_for")),
        })
        .collect();
    let runs: Vec<Run> = runs
        .iter()
        .map(|row| Run {
            worker: row.get("worker"),
            host: text(row.get("host")),
            started_utc: row.get("started_utc"),
            took_s: row.get::<_, f64>("took_s").max(0.0),
            state: row.get("state"),
            error: text(row.get("error")),
            rows_deleted: row.get("rows_deleted"),
            objects_deleted: row.get("objects_deleted"),
            bytes_freed: row.get("bytes_freed"),
            rows_failed: row.get("rows_failed"),
            waiting_for: text(row.get("waiting_for")),
        })
        .collect();
    let todo = todo(&snapshot, &workers, &runs, &fleet, settings);
    let (rate, drained_in_s) = (snapshot.rate(), snapshot.drained_in_s());
    Ok(Seen {
        bucket: fleet.bucket,
        watchdog_s_ago: fleet.watchdog_s_ago.map(|ago| ago.max(0.0)),
        watchdog_in_the_future: fleet.watchdog_s_ago.is_some_and(is_in_the_future),
        snapshot,
        rate,
        drained_in_s,
        workers,
        runs,
        todo,
    })
}

/// What a person should do something about, the most urgent first.
fn todo(
    snapshot: &Snapshot,
    workers: &[OpenWorker],
    runs: &[Run],
    fleet: &Fleet,
    settings: &Settings,
) -> Vec<Todo> {
    let mut todo = Vec::new();
    let mut add = |what: String, remedy: &str| {
        todo.push(Todo { what, remedy: remedy.to_string() });
    };
    if let Some(reason) = &snapshot.paused {
        add(format!("the fleet is paused: {}", printable(reason)), "cleanupctl resume");
    }
    if snapshot.stuck_claims > 0 {
        add(
            format!(
                "{} claims are silent for longer than watchdog.stuck_after, and nobody has reset \
                 them: no watchdog runs, or a transaction holds their rows",
                thousands(snapshot.stuck_claims)
            ),
            "start cleanup-watchdog; at once: cleanup-watchdog --once; then: cleanupctl doctor \
             --long-transaction 1m",
        );
    }
    let (heartbeats, stuck) = (settings.worker.three_heartbeats(), settings.watchdog.stuck_after);
    let silent = |heartbeat_age_s: f64| {
        heartbeat_age_s > heartbeats.as_secs_f64() && heartbeat_age_s < stuck.as_secs_f64()
    };
    for worker in workers.iter().filter(|worker| silent(worker.heartbeat_age_s)).take(3) {
        add(
            format!(
                "worker {} has been silent for {:.0} s and holds {} pastes; {}",
                worker.worker,
                worker.heartbeat_age_s,
                thousands(worker.pastes),
                fleet.reset_in(stuck.as_secs_f64() - worker.heartbeat_age_s, settings)
            ),
            &format!("if it is dead: cleanupctl reset --worker {}", worker.worker),
        );
    }
    for worker in workers.iter().filter(|worker| worker.in_the_future).take(3) {
        add(
            format!(
                "the last heartbeat of worker {} is in the future: the server's clock was ahead",
                worker.worker
            ),
            "the watchdog's next sweep corrects it; at once: cleanup-watchdog --once",
        );
    }
    let idle_s = snapshot.now_s - snapshot.last_start_s.unwrap_or_default();
    if idle_s.min(snapshot.oldest_overdue_s.unwrap_or_default()) > A_NIGHT_AND_A_DAY_S {
        let what = format!(
            "{} pastes are due, and no run has started for more than a day",
            thousands(snapshot.backlog)
        );
        add(what, "what should have started one? by hand: cleanup-worker run");
    }
    if snapshot.dead_letters > 0 {
        add(
            format!("{} pastes failed for good", thousands(snapshot.dead_letters)),
            "cleanupctl dead-letters; when the cause is fixed: cleanupctl requeue --all",
        );
    }
    if snapshot.unclaimable > 0 {
        add(
            format!("{} pastes cannot be claimed", thousands(snapshot.unclaimable)),
            "cleanupctl doctor says why; when that is fixed: cleanupctl requeue --all",
        );
    }
    if let Some(findings) = snapshot.audit_findings_left.filter(|findings| *findings > 0) {
        add(
            format!("the last audit left {} findings", thousands(findings)),
            "cleanupctl audit shows them, cleanupctl audit --repair fixes what can be fixed",
        );
    }
    let stopped = runs.iter().find(|run| run.state != "running");
    if let Some(run) = stopped.filter(|run| matches!(&*run.state, "failed" | "brake")) {
        let why = run.error.as_deref().unwrap_or("no reason is recorded");
        let remedy = match &*run.state {
            "brake" => "cleanup-worker run --dry-run shows how much; ops/RUNBOOK.md#brake",
            _ => "cleanupctl doctor",
        };
        add(format!("the last run ended with {:?}: {why}", run.state), remedy);
    }
    todo
}
