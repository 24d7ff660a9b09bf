//! How much is due? Counted as far as that is cheap, sampled beyond; never a full count.

use std::time::Duration;

use tokio_postgres::{Client, Error};

use crate::postgres::planner::BY_DUE_INDEX;

const COUNT_DUE: &str = sql!("fleet/count_due");
const TABLE_PAGES: &str = sql!("fleet/table_pages");
const SAMPLE_DUE: &str = sql!("fleet/sample_due");
/// So many are counted exactly: some tens of milliseconds.
const COUNTED: u64 = 100_000;
const COUNTED_WITHIN: Duration = Duration::from_secs(20);
/// A larger table is sampled. So many pages tell a share to one percent of the table.
const SAMPLED_PAGES: u64 = 2000;

/// What is due right now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    pub due: u64,
    /// From a sample of the table, not counted.
    pub estimated: bool,
}

/// The share of the table that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub due: u64,
    pub pastes: u64,
    pub sampled: bool,
}

/// Exact up to 100,000, an estimate beyond. Takes well under a second on any table.
pub async fn backlog(client: &mut Client) -> Result<Backlog, Error> {
    let counted = count_due(client, COUNTED, COUNTED_WITHIN).await?;
    if counted < COUNTED {
        return Ok(Backlog { due: counted, estimated: false });
    }
    let share = sample(client, |_| 0).await?;
    Ok(Backlog { due: share.due.max(COUNTED), estimated: share.sampled })
}

/// Looks at a random part of the table. `pages_needed`: of so many pages, if the usual number of
/// them does not do.
pub(crate) async fn sample(
    client: &Client,
    pages_needed: impl FnOnce(u64) -> u64,
) -> Result<Share, Error> {
    let pages: i64 = client.query_one(TABLE_PAGES, &[]).await?.get("pages");
    let pages = pages.unsigned_abs().max(1);
    let looked_at = pages_needed(pages).max(SAMPLED_PAGES);
    let percent = (looked_at as f64 * 100.0 / pages as f64).min(100.0);
    let row = client.query_one(SAMPLE_DUE, &[&percent]).await?;
    let whole = |name| (row.get::<_, i64>(name) as f64 * 100.0 / percent) as u64;
    Ok(Share { due: whole("due"), pastes: whole("pastes"), sampled: percent < 100.0 })
}

/// Counts no further than the cap.
pub(crate) async fn count_due(
    client: &mut Client,
    cap: u64,
    within: Duration,
) -> Result<u64, Error> {
    let transaction = client.transaction().await?;
    let patient = format!("SET LOCAL statement_timeout = {}", within.as_millis());
    transaction.batch_execute(&format!("{patient}; {BY_DUE_INDEX}")).await?;
    let cap = i64::try_from(cap).unwrap_or(i64::MAX);
    let due: i64 = transaction.query_one(COUNT_DUE, &[&cap]).await?.get("due");
    transaction.commit().await?;
    Ok(due.unsigned_abs())
}
