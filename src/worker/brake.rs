//! The brake: deletion cannot be undone, so a run that would delete suspiciously much (a wrong
//! clock, a bad migration) stops before it claims.

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
/// A larger table is sampled. So many pages tell a share to one percent in a few dozen milliseconds.
const SAMPLED_PAGES: i64 = 2000;

/// The share of the table that is due.
struct Share {
    due: u64,
    pastes: u64,
    sampled: bool,
}

/// Why a run must not go on, if so: with the figures and the remedy. `done`: so many it has deleted
/// already; `limit`: it would delete no more than so many in all.
pub async fn brake(
    client: &mut Client,
    settings: &Brake,
    done: u64,
    limit: Option<u64>,
) -> Result<Option<String>, Error> {
    let would = |due: u64| limit.map_or(done + due, |limit| limit.min(done + due));
    let max_rows = settings.max_rows.unwrap_or(u64::MAX);
    // Cheap, and enough on most nights of most tables.
    let cap = match max_rows {
        ..COUNTED_AT_ONCE => JUDGED_FROM.max(max_rows + 1),
        _ => JUDGED_FROM,
    };
    let due = count_due(client, cap).await?;
    if would(due) > max_rows {
        return Ok(Some(too_many(due, due == cap, max_rows)));
    }
    if due < JUDGED_FROM {
        return Ok(None);
    }
    let share = share_due(client).await?;
    let of_table = would(share.due) as f64 / (done + share.pastes).max(1) as f64;
    if of_table > settings.max_share && would(share.due) >= JUDGED_FROM {
        return Ok(Some(too_large(&share, settings.max_share)));
    }
    // The sample says roughly how many; only near the limit is it worth counting them all.
    if would(share.due.saturating_mul(2)) > max_rows {
        let due = count_due(client, max_rows.saturating_add(1)).await?;
        return Ok((would(due) > max_rows).then(|| too_many(due, true, max_rows)));
    }
    Ok(None)
}

async fn count_due(client: &mut Client, cap: u64) -> Result<u64, Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(ONE_PLAN).await?;
    let cap = i64::try_from(cap).unwrap_or(i64::MAX);
    let due: i64 = transaction.query_one(COUNT_DUE, &[&cap]).await?.get("due");
    transaction.commit().await?;
    Ok(due.unsigned_abs())
}

async fn share_due(client: &Client) -> Result<Share, Error> {
    let pages: i64 = client.query_one(TABLE_PAGES, &[]).await?.get("pages");
    let sampled = pages > SAMPLED_PAGES;
    let percent = if sampled { SAMPLED_PAGES as f32 * 100.0 / pages as f32 } else { 100.0 };
    let row = client.query_one(SAMPLE_DUE, &[&percent]).await?;
    let whole = |name| (row.get::<_, i64>(name) as f64 * 100.0 / f64::from(percent)) as u64;
    Ok(Share { due: whole("due"), pastes: whole("pastes"), sampled })
}

fn too_large(share: &Share, max_share: f64) -> String {
    let about = if share.sampled { "about " } else { "" };
    let percent = share.due as f64 * 100.0 / share.pastes.max(1) as f64;
    format!(
        "{about}{} of {about}{} pastes are due, {percent:.0} %, more than brake.max_share allows \
         ({:.0} %); {REMEDY}",
        thousands(share.due),
        thousands(share.pastes),
        max_share * 100.0
    )
}

fn too_many(due: u64, or_more: bool, max_rows: u64) -> String {
    let or_more = if or_more { " or more" } else { "" };
    format!(
        "{}{or_more} pastes are due, more than brake.max_rows allows ({}); {REMEDY}",
        thousands(due),
        thousands(max_rows)
    )
}

const REMEDY: &str = "check the clock of the database and what last changed expires_at; if it is \
                      right, run again with --override-brake";
