//! A snapshot of the fleet: what `status` shows and the watchdog exports as metrics.

use serde::Serialize;
use tokio_postgres::{Client, Error};

use super::backlog::{Backlog, backlog};
use crate::config::Settings;

const SNAPSHOT: &str = sql!("status/snapshot");

/// The state of the fleet at one moment. Times are seconds since 1970 by Postgres' clock.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    /// Pastes that are due.
    pub backlog: u64,
    /// The backlog is large, and estimated.
    pub backlog_estimated: bool,
    /// Time since the expiry of the paste that is due first; `None`: no due paste has an age.
    pub oldest_overdue_s: Option<f64>,
    /// Some due pastes have `expires_at` = -infinity, and therefore no age.
    pub expired_at_minus_infinity: bool,
    /// Pastes in open claims, as many as were claimed.
    pub in_progress: i64,
    /// Claims neither finished nor reset.
    pub open_claims: i64,
    /// Those without a heartbeat for longer than `watchdog.stuck_after`.
    pub stuck_claims: i64,
    /// Workers with open claims.
    pub busy_workers: i64,
    /// Pastes that failed and will be retried.
    pub backing_off: i64,
    /// Pastes that failed permanently and need an operator.
    pub dead_letters: i64,
    /// Pastes that Postgres does not let a worker claim.
    pub unclaimable: i64,
    /// Pastes deleted by claims that ended in the last minute.
    pub deleted_1m: i64,
    /// The seconds of the last minute in which workers were running.
    pub busy_s: Option<f64>,
    /// Pastes deleted by claims that ended in the last 24 hours.
    pub deleted_24h: i64,
    /// The reason, when the fleet is paused.
    pub paused: Option<String>,
    /// When the last run started, even if it failed; `None`: no run is recorded.
    pub last_start_s: Option<f64>,
    /// When a run last left nothing due.
    pub last_success_s: Option<f64>,
    /// When the last complete audit ended.
    pub audited_s: Option<f64>,
    /// Findings that it did not repair.
    pub audit_findings_left: Option<i64>,
    /// When the snapshot was taken.
    pub now_s: f64,
}

/// A time of another session may be slightly ahead of this one's; further ahead it is wrong.
const TOLERANCE_S: f64 = 60.0;

/// Returns whether a time of this age (in seconds) is in the future.
pub fn is_in_the_future(age_s: f64) -> bool {
    age_s < -TOLERANCE_S
}

impl Snapshot {
    /// Takes a snapshot; well under a second on any table.
    pub async fn take(client: &mut Client, settings: &Settings) -> Result<Self, Error> {
        let Backlog { due, estimated } = backlog(client).await?;
        let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
        let row = client.query_one(SNAPSHOT, &[&stuck_after]).await?;
        Ok(Self {
            backlog: due,
            backlog_estimated: estimated,
            oldest_overdue_s: row.get("oldest_overdue_s"),
            expired_at_minus_infinity: row.get("expired_at_minus_infinity"),
            in_progress: row.get("in_progress"),
            open_claims: row.get("open_claims"),
            stuck_claims: row.get("stuck_claims"),
            busy_workers: row.get("workers"),
            backing_off: row.get("backing_off"),
            dead_letters: row.get("dead_letters"),
            unclaimable: row.get("unclaimable"),
            deleted_1m: row.get("deleted_1m"),
            busy_s: row.get("busy_s"),
            deleted_24h: row.get("deleted_24h"),
            paused: row.get("paused"),
            last_start_s: row.get("last_start_s"),
            last_success_s: row.get("last_success_s"),
            audited_s: row.get("audited_s"),
            audit_findings_left: row.get("findings_left"),
            now_s: row.get("now_s"),
        })
    }

    /// Returns the rate of the last minute, in pastes per second.
    pub fn rate(&self) -> f64 {
        self.deleted_1m as f64 / self.busy_s.unwrap_or(60.0).max(1.0)
    }

    /// Returns the seconds until the backlog is drained at that rate; `None` if nothing is being deleted.
    pub fn drained_in_s(&self) -> Option<f64> {
        (self.deleted_1m > 0).then(|| self.backlog as f64 / self.rate())
    }
}
