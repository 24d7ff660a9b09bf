//! Reads everything that `status` shows: the snapshot of the fleet, workers with open claims, last runs.

use anyhow::{Result, anyhow};
use serde::Serialize;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::todo::{Todo, todo};
use crate::{
    config::Settings,
    fleet,
    fleet::{
        snapshot::{Snapshot, is_in_the_future},
        stranded::Stranded,
    },
    postgres::describe,
    printable::printable,
};

const OPEN_CLAIMS: &str = sql!("status/open_claims");
const LAST_RUNS: &str = sql!("status/last_runs");
const RUNS_SHOWN: i32 = 5;

/// What `status` shows, in text and in JSON.
#[derive(Serialize)]
pub(super) struct Overview {
    pub bucket: Option<String>,
    /// Seconds since a watchdog last completed a sweep.
    pub watchdog_s_ago: Option<f64>,
    pub watchdog_in_the_future: bool,
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Expired pastes in progress without an open claim, which no sweep could reset.
    pub stranded: i64,
    /// Pastes deleted per second, over the time of the last minute in which workers had claims.
    pub rate: f64,
    /// When the backlog is drained at that rate; `None` while no worker is running.
    pub drained_in_s: Option<f64>,
    pub workers: Vec<OpenWorker>,
    pub runs: Vec<Run>,
    pub todo: Vec<Todo>,
}

/// A worker with open claims.
#[derive(Serialize)]
pub(super) struct OpenWorker {
    pub worker: Uuid,
    pub host: Option<String>,
    pub claims: i64,
    pub pastes: i64,
    pub heartbeat_age_s: f64,
    /// Its last heartbeat is in the future: Postgres' clock was ahead.
    pub in_the_future: bool,
    pub oldest_claim_s: f64,
    /// The first few, the oldest heartbeat first.
    pub claim_ids: Vec<i64>,
    pub waiting_for: Option<String>,
}

/// A run of a worker.
#[derive(Serialize)]
pub(super) struct Run {
    pub worker: Uuid,
    pub host: Option<String>,
    pub started_utc: String,
    pub took_s: f64,
    /// `running`, `dead` (no heartbeat for three intervals), or why it stopped.
    pub state: String,
    pub error: Option<String>,
    pub rows_deleted: i64,
    pub objects_deleted: i64,
    pub bytes_freed: i64,
    pub rows_failed: i64,
    pub waiting_for: Option<String>,
}

impl Run {
    /// Returns whether its worker has sent a heartbeat within the last three intervals.
    pub(super) fn is_running(&self) -> bool {
        self.state == "running"
    }
}

/// Reads the overview; well under a second on any table.
pub(super) async fn read(client: &mut Client, settings: &Settings) -> Result<Overview> {
    let failed = |error| anyhow!("cannot read the status: {}", describe(&error));
    let fleet = fleet::read(client).await?;
    let snapshot = Snapshot::take(client, settings).await.map_err(failed)?;
    let dead_after = settings.worker.three_heartbeats().as_secs_f64();
    let workers = client.query(OPEN_CLAIMS, &[]).await.map_err(failed)?;
    let workers: Vec<OpenWorker> = workers.iter().map(OpenWorker::from).collect();
    let runs = client.query(LAST_RUNS, &[&RUNS_SHOWN, &dead_after]).await.map_err(failed)?;
    let runs: Vec<Run> = runs.iter().map(Run::from).collect();
    let stranded = Stranded::find(client, settings).await.map_err(failed)?;
    let mut todo = todo(&snapshot, &workers, &runs, &fleet, settings);
    todo.extend(stranded.as_ref().map(Todo::from));
    let rate = snapshot.rate();
    let is_running = runs.iter().any(|run| run.is_running());
    let drained_in_s = snapshot.drained_in_s().filter(|_| is_running);
    Ok(Overview {
        bucket: fleet.bucket,
        watchdog_s_ago: fleet.watchdog_s_ago.map(|ago| ago.max(0.0)),
        watchdog_in_the_future: fleet.watchdog_s_ago.is_some_and(is_in_the_future),
        snapshot,
        stranded: stranded.map_or(0, |stranded| stranded.pastes),
        rate,
        drained_in_s,
        workers,
        runs,
        todo,
    })
}

/// A column that workers fill with texts of their host, S3 or Postgres.
fn text(row: &Row, column: &str) -> Option<String> {
    row.get::<_, Option<String>>(column).map(|text| printable(&text))
}

impl From<&Row> for OpenWorker {
    fn from(row: &Row) -> Self {
        Self {
            worker: row.get("worker"),
            host: text(row, "host"),
            claims: row.get("claims"),
            pastes: row.get("pastes"),
            heartbeat_age_s: row.get::<_, f64>("heartbeat_age_s").max(0.0),
            in_the_future: is_in_the_future(row.get("heartbeat_age_s")),
            oldest_claim_s: row.get::<_, f64>("oldest_claim_s").max(0.0),
            claim_ids: row.get("claim_ids"),
            waiting_for: text(row, "waiting_for"),
        }
    }
}

impl From<&Row> for Run {
    fn from(row: &Row) -> Self {
        Self {
            worker: row.get("worker"),
            host: text(row, "host"),
            started_utc: row.get("started_utc"),
            took_s: row.get::<_, f64>("took_s").max(0.0),
            state: row.get("state"),
            error: text(row, "error"),
            rows_deleted: row.get("rows_deleted"),
            objects_deleted: row.get("objects_deleted"),
            bytes_freed: row.get("bytes_freed"),
            rows_failed: row.get("rows_failed"),
            waiting_for: text(row, "waiting_for"),
        }
    }
}
