//! The safety brake: deletion cannot be undone, so a run that would delete an implausible share of the
//! table (a wrong clock, a bad migration) stops before it claims.

use std::time::Duration;

use tokio_postgres::{Client, Error};

use crate::{
    config::Brake,
    fleet::backlog::{Share, count_due, sample},
    format::{counted, thousands},
    postgres::planner::BY_DUE_INDEX,
    worker::batch::decrement::judge_missing,
};

const MISSING: &str = sql!("run/missing_content");
/// A small table may well expire as a whole: the share matters from this many due pastes on.
const SHARE_FROM: u64 = 100_000;
/// A limit up to this is compared with an exact count right away.
const COUNTED_AT_ONCE: u64 = 1_000_000;
/// For an error below a half at `max_rows`, this many of the sampled pages must have due pastes if these
/// lie side by side, the worst case.
const PAGES_WITH_DUE: u64 = 50;
const MOST_PASTES_ON_A_PAGE: u64 = 100;

/// How long the count may take. Nothing is claimed meanwhile.
pub(in crate::worker) const BRAKE_WITHIN: Duration = Duration::from_secs(600);

/// What this run has deleted already, and what is in flight.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// Pastes that finished batches of this run have deleted.
    pub done: u64,
    /// Pastes in batches that are not finished yet.
    pub in_flight: u64,
}

/// Returns why the run must stop, with the numbers and the remedy. `limit`: the most that it would delete
/// in all.
pub async fn brake(
    client: &mut Client,
    settings: &Brake,
    taken: Taken,
    limit: Option<u64>,
) -> Result<Option<String>, Error> {
    let Taken { done, in_flight } = taken;
    let would = |due: u64| (done + in_flight + due).min(limit.unwrap_or(u64::MAX));
    let max_rows = settings.max_rows.unwrap_or(u64::MAX);
    let share = share_due(client, max_rows).await?;
    let (due, all) = (would(share.due), done + share.pastes);
    if due as f64 > settings.max_share * all as f64 && due >= SHARE_FROM {
        return Ok(Some(too_large(due, all, share.sampled, settings.max_share)));
    }
    // Walking a backlog along its index takes seconds a million: only when it can matter.
    if max_rows < COUNTED_AT_ONCE || would(share.due.saturating_mul(2)) > max_rows {
        let due = count_due(client, max_rows.saturating_add(1), BRAKE_WITHIN).await?;
        if would(due) > max_rows {
            return Ok(Some(too_many(max_rows)));
        }
    }
    content_is_missing(client).await
}

const CHECKED_PASTES: i32 = 1000;

/// Checked before anything is claimed: a paste whose content is gone loses its hash when it is reset.
async fn content_is_missing(client: &mut Client) -> Result<Option<String>, Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(BY_DUE_INDEX).await?;
    let row = transaction.query_one(MISSING, &[&CHECKED_PASTES]).await?;
    transaction.commit().await?;
    let count = |name| row.get::<_, i64>(name).unsigned_abs();
    Ok(judge_missing(count("missing"), count("pastes")))
}

async fn share_due(client: &Client, max_rows: u64) -> Result<Share, Error> {
    sample(client, |pages| match max_rows {
        ..COUNTED_AT_ONCE => 0,
        rows => (PAGES_WITH_DUE * MOST_PASTES_ON_A_PAGE).saturating_mul(pages) / rows,
    })
    .await
}

fn too_large(due: u64, all: u64, sampled: bool, max_share: f64) -> String {
    let about = if sampled { "about " } else { "" };
    format!(
        "{about}{} of {about}{} pastes are due, {:.0} %, more than brake.max_share allows \
         ({:.0} %); {REMEDY}",
        thousands(due),
        thousands(all),
        due as f64 * 100.0 / all.max(1) as f64,
        max_share * 100.0
    )
}

fn too_many(max_rows: u64) -> String {
    format!("would delete more than {} (brake.max_rows); {REMEDY}", counted(max_rows, "paste"))
}

const REMEDY: &str = "check the clock of the database and what last changed expires_at; if this is \
                      expected, run again with --override-brake";
