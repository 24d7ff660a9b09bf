//! How the fleet is doing right now: what `status` shows and the watchdog exports.

use serde::Serialize;
use tokio_postgres::{Client, Error};

use super::backlog::{Backlog, backlog};
use crate::config::Settings;

const SNAPSHOT: &str = sql!("fleet/snapshot");

/// One look. Times are seconds since 1970 by Postgres' clock.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    /// Due right now.
    pub backlog: u64,
    /// The backlog is an estimate: it is large.
    pub backlog_estimated: bool,
    pub oldest_overdue_s: Option<f64>,
    /// Pastes are due whose `expires_at` is -infinity: they have no age.
    pub expired_since_ever: bool,
    pub in_progress: i64,
    pub open_claims: i64,
    pub stuck_claims: i64,
    /// Workers with open claims.
    pub busy_workers: i64,
    pub backing_off: i64,
    pub dead_letters: i64,
    /// Pastes that Postgres does not let a worker claim.
    pub unclaimable: i64,
    pub deleted_1m: i64,
    /// The part of the last minute in which somebody was at work.
    pub busy_s: Option<f64>,
    pub deleted_24h: i64,
    pub paused: Option<String>,
    pub last_start_s: Option<f64>,
    /// When a run last got to the end of the backlog.
    pub last_success_s: Option<f64>,
    /// The last audit that got to the end, and what of its findings it left.
    pub audited_s: Option<f64>,
    pub audit_findings_left: Option<i64>,
    pub now_s: f64,
}

/// Times are compared with those of other sessions, which may be younger. Further ahead they are wrong.
const TOLERANCE_S: f64 = 60.0;

/// Is something of this age (in seconds) in the future?
pub fn is_in_the_future(age_s: f64) -> bool {
    age_s < -TOLERANCE_S
}

impl Snapshot {
    /// Looks; well under a second on any table.
    pub async fn take(client: &mut Client, settings: &Settings) -> Result<Self, Error> {
        let Backlog { due, estimated } = backlog(client).await?;
        let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
        let row = client.query_one(SNAPSHOT, &[&stuck_after]).await?;
        Ok(Self {
            backlog: due,
            backlog_estimated: estimated,
            oldest_overdue_s: row.get("oldest_overdue_s"),
            expired_since_ever: row.get("expired_since_ever"),
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

    /// Pastes per second over the last minute.
    pub fn rate(&self) -> f64 {
        self.deleted_1m as f64 / self.busy_s.unwrap_or(60.0).max(1.0)
    }

    /// At that rate; `None` when nothing is being deleted.
    pub fn drained_in_s(&self) -> Option<f64> {
        (self.deleted_1m > 0).then(|| self.backlog as f64 / self.rate())
    }
}
