//! Corrects times that cannot be right: missing, or in the future, because the server's clock was ahead.
//! Every sweep does this, so that such a time never hides a claim or a row for longer than the settings
//! allow.

use deadpool_postgres::Transaction;
use tokio_postgres::Error;
use tracing::{error, warn};

use crate::{
    config::Settings,
    format::counted,
    postgres::{Fault, describe},
};

const HEARTBEATS: &str = sql!("sweep/correct_heartbeats");
const TIMES: &str = sql!("sweep/correct_times");
const ROWS_PER_STATEMENT: i32 = 2000;

/// Corrects a bounded number of rows. Returns whether there may be more.
pub(super) async fn correct_times(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
) -> Result<bool, Error> {
    let claims = transaction.execute(HEARTBEATS, &[]).await?;
    if claims > 0 {
        let what = counted(claims, "claim");
        warn!(claims, "corrected {what} whose last heartbeat was in the future");
    }
    let longest = settings.worker.longest_backoff().as_secs_f64();
    let cap = settings.worker.backoff_cap.as_secs_f64();
    // A trigger may refuse it, which must not stop the rest of the sweep.
    let savepoint = transaction.savepoint("times").await?;
    match savepoint.execute(TIMES, &[&ROWS_PER_STATEMENT, &longest, &cap]).await {
        Ok(0) => savepoint.commit().await.map(|()| false),
        Ok(rows) => {
            savepoint.commit().await?;
            let what = counted(rows, "paste");
            warn!(rows, "corrected {what} whose times were missing or in the future");
            Ok(rows >= u64::from(ROWS_PER_STATEMENT.unsigned_abs()))
        }
        Err(refusal) if Fault::of(&refusal) != Fault::Transient => {
            error!(
                "cannot correct times that are missing or in the future: {}",
                describe(&refusal)
            );
            savepoint.rollback().await.map(|()| false)
        }
        Err(error) => Err(error),
    }
}
