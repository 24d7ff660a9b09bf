//! After a search for bad units: a second try of those that were too slow for it.

use std::time::Duration;

use deadpool_postgres::Transaction;
use tokio::time::Instant;
use tokio_postgres::Error;

use super::{Applied, Blame, Failed, Refusal, Write, timeout};
use crate::postgres::Fault;

/// Tries the units that were too slow one by one, each with all the time that is left: otherwise a dozen
/// rows of six seconds each would never be written, neither together nor in parts. In random order, so
/// that a unit that never ends does not always come first.
pub(super) async fn try_alone<T>(
    transaction: &mut Transaction<'_>,
    applied: &mut Applied<T>,
    blame: &Blame,
    write: &impl Write<T>,
    time: Duration,
) -> Result<(), Error> {
    let until = Instant::now() + time;
    let is_slow = |failed: &mut Failed<T>| failed.fault == Fault::Slow;
    let mut slow: Vec<Failed<T>> = applied.failed.extract_if(.., is_slow).collect();
    fastrand::shuffle(&mut slow);
    for mut bad in slow {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            applied.failed.push(bad);
            continue;
        }
        transaction.batch_execute(&timeout(left)).await?;
        let savepoint = transaction.savepoint("part").await?;
        match write.write(&savepoint, std::slice::from_ref(&bad.unit)).await {
            Ok(rows) => {
                savepoint.commit().await?;
                applied.written += rows;
                applied.succeeded = true;
                blame.succeeded();
            }
            Err(refusal) => match (refusal.fault(), refusal) {
                (Fault::Transient, Refusal::Postgres(error)) => return Err(error),
                (fault, refusal) => {
                    savepoint.rollback().await?;
                    (bad.fault, bad.error, bad.was_tried) = (fault, refusal.reason(), true);
                    applied.failed.push(bad);
                }
            },
        }
    }
    Ok(())
}
