//! Rows in progress that no open claim covers: something else marked them, or somebody ended or
//! deleted their claim by hand. Nothing is ever left behind for good, so they are reset by their age.

use deadpool_postgres::Transaction;
use tokio_postgres::Error;
use tracing::{error, warn};

use super::reset::IN_ORDER;
use crate::{config::Settings, failpoint, postgres::describe};

const STAMP: &str = include_str!("../../sql/queries/orphans_stamp.sql");
const UNCLAIMED: &str = include_str!("../../sql/queries/orphans_unclaimed.sql");
const OF_ENDED_CLAIMS: &str = include_str!("../../sql/queries/orphans_of_ended_claims.sql");
const RESET: &str = include_str!("../../sql/queries/orphans_reset.sql");
const ROWS_PER_TRANSACTION: i32 = 2000;
/// There is another sweep soon; a worker's own steps have more patience.
const WAIT_BRIEFLY: &str = "SET LOCAL lock_timeout = 500";
/// Some twenty seconds of waiting for locks, in one transaction; the rest waits for the next sweep.
const MOST_FAILURES: u32 = 40;

/// How far a sweep looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// What every tick can afford: silent claims, and rows without a claim.
    Quick,
    /// Also rows whose claim is not open any more.
    Thorough,
}

/// Resets a bounded number of them. Zero: none are left.
pub(super) async fn reset_orphans(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    look: Look,
) -> Result<u64, Error> {
    failpoint::reached("orphans.before");
    transaction.execute(STAMP, &[&ROWS_PER_TRANSACTION]).await?;
    failpoint::reached("orphans.stamped");
    let mut orphans = find(transaction, settings, UNCLAIMED).await?;
    if orphans.is_empty() && look == Look::Thorough {
        orphans = find(transaction, settings, OF_ENDED_CLAIMS).await?;
    }
    if orphans.is_empty() {
        return Ok(0);
    }
    let rows = put_back(transaction, settings, &orphans).await?;
    failpoint::reached("orphans.reset");
    warn!(rows, "reset {rows} pastes that were in progress without an open claim");
    Ok(rows)
}

/// All but those that cannot be put back right now, because a forgotten transaction holds their body,
/// say: these are found by halving, and wait for the next sweep.
async fn put_back(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    orphans: &[String],
) -> Result<u64, Error> {
    let cap = settings.worker.backoff_cap.as_secs_f64();
    transaction.batch_execute(&format!("{IN_ORDER}; {WAIT_BRIEFLY}")).await?;
    let (mut rows, mut failures, mut parts) = (0, 0, vec![orphans]);
    while let Some(part) = parts.pop().filter(|_| failures < MOST_FAILURES) {
        let savepoint = transaction.savepoint("orphans").await?;
        match savepoint.execute(RESET, &[&part, &cap]).await {
            Ok(reset) => {
                savepoint.commit().await?;
                rows += reset;
            }
            Err(failure) if failure.as_db_error().is_some() => {
                savepoint.rollback().await?;
                failures += 1;
                match part {
                    [one] => error!("paste {one:?} cannot be reset: {}", describe(&failure)),
                    many => parts.extend(many.chunks(many.len().div_ceil(2))),
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(rows)
}

async fn find(
    transaction: &Transaction<'_>,
    settings: &Settings,
    query: &str,
) -> Result<Vec<String>, Error> {
    let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
    let rows = transaction.query(query, &[&stuck_after, &ROWS_PER_TRANSACTION]).await?;
    Ok(rows.iter().map(|row| row.get("short_code")).collect())
}
