//! The brake: deletion cannot be undone, so a run that would delete suspiciously much (a wrong
//! clock, a bad migration) stops before it claims.

use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::claim::ONE_PLAN;
use crate::{cli::thousands, config::Brake};

const COUNT_DUE: &str = include_str!("../../sql/queries/count_due.sql");
const TABLE_PAGES: &str = include_str!("../../sql/queries/table_pages.sql");
const SAMPLE_DUE: &str = include_str!("../../sql/queries/sample_due.sql");
/// A small table may well expire as a whole: the share is judged from so many due pastes on.
const JUDGED_FROM: u64 = 100_000;
/// A limit up to this is held against an exact count right away.
const COUNTED_AT_ONCE: u64 = 1_000_000;
/// A larger table is sampled. So many pages tell a share to one percent of the table.
const SAMPLED_PAGES: u64 = 2000;
/// To be within half of the truth about `max_rows`, so many of the sampled pages must have due
/// pastes on them if they lie side by side, the worst case.
const TELLING_PAGES: u64 = 50;
const MOST_PASTES_ON_A_PAGE: u64 = 100;

/// How long the count may take. Nothing is claimed meanwhile.
pub(super) const BRAKE_WITHIN: Duration = Duration::from_secs(600);

/// What this run has deleted already, and what it is at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    pub done: u64,
    pub in_flight: u64,
}

/// The share of the table that is due.
struct Share {
    due: u64,
    pastes: u64,
    sampled: bool,
}

/// Why a run must not go on, if so: with the figures and the remedy. `limit`: it would delete no
/// more than so many in all.
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
    if due as f64 > settings.max_share * all as f64 && due >= JUDGED_FROM {
        return Ok(Some(too_large(due, all, share.sampled, settings.max_share)));
    }
    // Walking a backlog along its index takes seconds a million: only when it can matter.
    if max_rows < COUNTED_AT_ONCE || would(share.due.saturating_mul(2)) > max_rows {
        let due = count_due(client, max_rows.saturating_add(1)).await?;
        return Ok((would(due) > max_rows).then(|| too_many(max_rows)));
    }
    Ok(None)
}

async fn share_due(client: &Client, max_rows: u64) -> Result<Share, Error> {
    let pages: i64 = client.query_one(TABLE_PAGES, &[]).await?.get("pages");
    let pages = pages.unsigned_abs().max(1);
    let telling = match max_rows {
        ..COUNTED_AT_ONCE => 0,
        rows => (TELLING_PAGES * MOST_PASTES_ON_A_PAGE).saturating_mul(pages) / rows,
    };
    let percent = (telling.max(SAMPLED_PAGES) as f64 * 100.0 / pages as f64).min(100.0);
    let row = client.query_one(SAMPLE_DUE, &[&percent]).await?;
    let whole = |name| (row.get::<_, i64>(name) as f64 * 100.0 / percent) as u64;
    Ok(Share { due: whole("due"), pastes: whole("pastes"), sampled: percent < 100.0 })
}

/// Counts no further than the cap.
async fn count_due(client: &mut Client, cap: u64) -> Result<u64, Error> {
    let transaction = client.transaction().await?;
    let patient = format!("SET LOCAL statement_timeout = {}", BRAKE_WITHIN.as_millis());
    transaction.batch_execute(&format!("{patient}; {ONE_PLAN}")).await?;
    let cap = i64::try_from(cap).unwrap_or(i64::MAX);
    let due: i64 = transaction.query_one(COUNT_DUE, &[&cap]).await?.get("due");
    transaction.commit().await?;
    Ok(due.unsigned_abs())
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
    format!(
        "more than {} pastes are due, the most that brake.max_rows allows; {REMEDY}",
        thousands(max_rows)
    )
}

const REMEDY: &str = "check the clock of the database and what last changed expires_at; if it is \
                      right, run again with --override-brake";
