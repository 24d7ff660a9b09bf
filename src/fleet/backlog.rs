//! Measures the backlog: counts due pastes up to a cap, and estimates from a sample beyond it. Never a
//! full count.

use std::time::Duration;

use tokio_postgres::{Client, Error};

use crate::postgres::planner::BY_DUE_INDEX;

const COUNT_DUE: &str = sql!("backlog/count_due");
const TABLE_PAGES: &str = sql!("backlog/table_pages");
const SAMPLE_DUE: &str = sql!("backlog/sample_due");
/// Up to this number due pastes are counted exactly, in some tens of milliseconds.
const COUNTED: u64 = 100_000;
const COUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Pages of a sample: enough to estimate a share to one percent of the table.
const SAMPLED_PAGES: u64 = 2000;

/// How many pastes are due now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Exact below 100,000, and never less than that if estimated.
    pub due: u64,
    /// Estimated from a sample of the table, not counted.
    pub estimated: bool,
}

/// The share of the table that is due, in numbers of pastes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub due: u64,
    pub pastes: u64,
    pub sampled: bool,
}

/// Measures the backlog: exact up to 100,000, an estimate beyond. Takes well under a second on any table.
pub async fn backlog(client: &mut Client) -> Result<Backlog, Error> {
    let counted = count_due(client, COUNTED, COUNT_TIMEOUT).await?;
    if counted < COUNTED {
        return Ok(Backlog { due: counted, estimated: false });
    }
    let share = sample(client, |_| 0).await?;
    Ok(Backlog { due: share.due.max(COUNTED), estimated: share.sampled })
}

/// Estimates the share from a random sample of pages. `pages_needed` returns how many of the table's
/// pages are needed, if that is more than usual.
pub(crate) async fn sample(
    client: &Client,
    pages_needed: impl FnOnce(u64) -> u64,
) -> Result<Share, Error> {
    let pages: i64 = client.query_one(TABLE_PAGES, &[]).await?.get("pages");
    let pages = pages.unsigned_abs().max(1);
    let sampled = pages_needed(pages).max(SAMPLED_PAGES);
    let percent = (sampled as f64 * 100.0 / pages as f64).min(100.0);
    let row = client.query_one(SAMPLE_DUE, &[&percent]).await?;
    let whole = |name| (row.get::<_, i64>(name) as f64 * 100.0 / percent) as u64;
    Ok(Share { due: whole("due"), pastes: whole("pastes"), sampled: percent < 100.0 })
}

/// Counts due pastes up to a cap.
pub(crate) async fn count_due(
    client: &mut Client,
    cap: u64,
    timeout: Duration,
) -> Result<u64, Error> {
    let transaction = client.transaction().await?;
    let statement_timeout = format!("SET LOCAL statement_timeout = {}", timeout.as_millis());
    transaction.batch_execute(&format!("{statement_timeout}; {BY_DUE_INDEX}")).await?;
    let cap = i64::try_from(cap).unwrap_or(i64::MAX);
    let due: i64 = transaction.query_one(COUNT_DUE, &[&cap]).await?.get("due");
    transaction.commit().await?;
    Ok(due.unsigned_abs())
}
