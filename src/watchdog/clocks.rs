//! Times that cannot be true: missing, or in the future, because the server's clock was ahead once.
//! Corrected by every sweep, so that they hide no claim and no row for longer than the settings do.

use deadpool_postgres::Transaction;
use tokio_postgres::Error;
use tracing::{error, warn};

use crate::{
    config::Settings,
    postgres::{Fault, describe},
};

const HEARTBEATS: &str = sql!("watchdog/correct_heartbeats");
const TIMES: &str = sql!("watchdog/correct_times");
const ROWS_PER_STATEMENT: i32 = 2000;

/// Corrects a bounded number of times. Returns whether there may be more.
pub(super) async fn correct_times(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
) -> Result<bool, Error> {
    let claims = transaction.execute(HEARTBEATS, &[]).await?;
    if claims > 0 {
        warn!(claims, "corrected {claims} claims: their last heartbeat was in the future");
    }
    let longest = settings.worker.longest_backoff().as_secs_f64();
    let cap = settings.worker.backoff_cap.as_secs_f64();
    // A trigger may refuse it: that must not keep the sweep from what follows.
    let savepoint = transaction.savepoint("times").await?;
    match savepoint.execute(TIMES, &[&ROWS_PER_STATEMENT, &longest, &cap]).await {
        Ok(0) => savepoint.commit().await.map(|()| false),
        Ok(rows) => {
            savepoint.commit().await?;
            warn!(rows, "corrected {rows} pastes: their times were missing or in the future");
            Ok(rows >= u64::from(ROWS_PER_STATEMENT.unsigned_abs()))
        }
        Err(refusal) if Fault::of(&refusal) != Fault::Transient => {
            error!(
                "times that are missing or in the future cannot be corrected: {}",
                describe(&refusal)
            );
            savepoint.rollback().await.map(|()| false)
        }
        Err(error) => Err(error),
    }
}
