//! Is anything left? Drained is concluded from a plain look: no low-water mark, no SKIP LOCKED.

use std::time::Duration;

use uuid::Uuid;

use super::{
    PgError, Worker,
    summary::{Left, Stats},
};
use crate::{fleet, format::thousands};

const LOOK: &str = sql!("run/next_due");
const LEFT: &str = sql!("run/remaining");
const DEAD: &str = sql!("fleet/expired_claims");
const STILL_THERE: &str = sql!("run/count_still_failed");
/// Rows that back off and come due within this are waited for.
const WORTH_WAITING_S: i32 = 60;
const MOST_DUE_COUNTED: i32 = 1_000_000;

/// What there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextDue {
    /// Rows are due; the class of the first one.
    Due { class: i16 },
    /// Nothing is due, but a row that backs off will be, soon.
    DueIn(Duration),
    /// Nothing is due.
    Nothing,
}

impl Worker {
    pub async fn next_due(&self) -> Result<NextDue, PgError> {
        let client = self.pool.get().await?;
        let look = client.prepare_cached(LOOK).await?;
        let ahead = format!("{WORTH_WAITING_S} seconds");
        let row = client.query_one(&look, &[&ahead]).await?;
        if let Some(class) = row.get::<_, Option<i16>>("due_class") {
            return Ok(NextDue::Due { class });
        }
        let next_ms: Option<i64> = row.get("next_retry_ms");
        let wait = next_ms.map(|ms| Duration::from_millis(u64::try_from(ms + 5).unwrap_or(5)));
        Ok(wait.map_or(NextDue::Nothing, NextDue::DueIn))
    }

    /// Expired pastes that a worker without a heartbeat holds, if there are any: then the backlog is not
    /// drained, whatever is due.
    pub(in crate::worker) async fn held_by_dead_workers(&self) -> Result<Option<String>, PgError> {
        let client = self.pool.get().await?;
        let heartbeats = self.settings.worker.three_heartbeats().as_secs_f64();
        let dead = client.query(DEAD, &[&heartbeats]).await?;
        let Some(first) = dead.first() else {
            return Ok(None);
        };
        let pastes: i64 = dead.iter().map(|row| row.get::<_, i64>("pastes")).sum();
        let (worker, heartbeat_age_s): (Uuid, f64) =
            (first.get("worker"), first.get("heartbeat_age_s"));
        let stuck_after = self.settings.watchdog.stuck_after.as_secs_f64();
        let then = match fleet::read(&client).await {
            Ok(fleet) => fleet.reset_in(stuck_after - heartbeat_age_s, &self.settings),
            Err(error) => format!("{error:#}"),
        };
        let silent =
            humantime::format_duration(Duration::from_secs(heartbeat_age_s.max(0.0) as u64));
        Ok(Some(format!(
            "{} pastes are claimed by worker {worker}{}, without a heartbeat for {silent}; {then}; \
             if it is dead for sure: `cleanupctl reset --worker {worker}`",
            thousands(pastes.unsigned_abs()),
            if dead.len() > 1 { " and others" } else { "" },
        )))
    }

    pub(in crate::worker) async fn left(&self) -> Result<Left, PgError> {
        let client = self.pool.get().await?;
        let row = client.query_one(LEFT, &[&self.id, &MOST_DUE_COUNTED]).await?;
        Ok(Left {
            due: row.get("due"),
            backing_off: row.get("backing_off"),
            dead_letters: row.get("dead_letters"),
            unclaimable: row.get("unclaimable"),
            claimed_by_others: row.get("claimed_by_others"),
        })
    }

    /// Of the pastes that failed in this run, how many has nobody deleted since?
    pub(in crate::worker) async fn still_there(&self, figures: &Stats) -> Result<u64, PgError> {
        let client = self.pool.get().await?;
        let row = client.query_one(STILL_THERE, &[&figures.failed, &figures.suspected]).await?;
        Ok(u64::try_from(row.get::<_, i64>("remaining")).unwrap_or_default())
    }
}
