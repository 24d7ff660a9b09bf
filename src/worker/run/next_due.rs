//! Queries what is due next. "Drained" is concluded from a plain query: no low-water mark, no SKIP
//! LOCKED.

use std::time::Duration;

use uuid::Uuid;

use super::stop::Stop;
use crate::{
    fleet::{self, stranded::Stranded},
    format::counted,
    postgres::PgError,
    worker::{Worker, report::StoppedBecause},
};

const NEXT_DUE: &str = sql!("run/next_due");
const DEAD_WORKERS: &str = sql!("status/dead_workers");
/// Rows that back off and come due within this are waited for.
pub(super) const WORTH_WAITING_S: i32 = 60;

/// What there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextDue {
    /// Rows are due; the class of the first one.
    Due { class: i16 },
    /// Nothing is due yet; the first row that backs off comes due after this time.
    DueIn(Duration),
    /// Nothing is due.
    Nothing,
}

/// Returns what is due next, including rows in claims that are not committed yet.
pub(super) async fn next_due(worker: &Worker) -> Result<NextDue, PgError> {
    let client = worker.pool.get().await?;
    let query = client.prepare_cached(NEXT_DUE).await?;
    let ahead = format!("{WORTH_WAITING_S} seconds");
    let row = client.query_one(&query, &[&ahead]).await?;
    if let Some(class) = row.get::<_, Option<i16>>("due_class") {
        return Ok(NextDue::Due { class });
    }
    let next_ms: Option<i64> = row.get("next_retry_ms");
    let wait = next_ms.map(|ms| Duration::from_millis(u64::try_from(ms + 5).unwrap_or(5)));
    Ok(wait.map_or(NextDue::Nothing, NextDue::DueIn))
}

/// Returns why a run stops when nothing is due: it is drained, unless expired pastes are hidden from it.
pub(super) async fn nothing_due(worker: &Worker) -> Result<Stop, PgError> {
    if let Some(claimed) = claimed_by_dead_workers(worker).await? {
        return Ok((StoppedBecause::DeadWorker, Some(claimed)));
    }
    Ok(match stranded(worker).await? {
        Some(left) => (StoppedBecause::Stranded, Some(format!("{left}; {}", left.remedy()))),
        None => (StoppedBecause::Drained, None),
    })
}

pub(super) async fn stranded(worker: &Worker) -> Result<Option<Stranded>, PgError> {
    Ok(Stranded::find(&*worker.pool.get().await?, &worker.settings).await?)
}

/// Describes the expired pastes that workers without a heartbeat have claimed, if there are any: then the
/// backlog is not drained, even if nothing is due.
async fn claimed_by_dead_workers(worker: &Worker) -> Result<Option<String>, PgError> {
    let settings = &worker.settings;
    let client = worker.pool.get().await?;
    let heartbeats = settings.worker.three_heartbeats().as_secs_f64();
    let dead = client.query(DEAD_WORKERS, &[&heartbeats]).await?;
    let Some(first) = dead.first() else {
        return Ok(None);
    };
    let pastes: i64 = dead.iter().map(|row| row.get::<_, i64>("pastes")).sum();
    let (id, age_s): (Uuid, f64) = (first.get("worker"), first.get("heartbeat_age_s"));
    let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
    let then = match fleet::read(&client).await {
        Ok(fleet) => fleet.reset_in(stuck_after - age_s, settings),
        Err(error) => format!("{error:#}"),
    };
    let age = humantime::format_duration(Duration::from_secs(age_s.max(0.0) as u64));
    let others = match dead.len() - 1 {
        0 => String::new(),
        others => format!(" (and {others} more)"),
    };
    Ok(Some(format!(
        "worker {id}{others} has claimed {} and has sent no heartbeat for {age}; its claim: \
         {then}; if the worker is dead: `cleanupctl reset --worker {id}`",
        counted(pastes, "paste"),
    )))
}
