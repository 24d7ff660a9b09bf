//! What a run leaves behind.

use serde::Serialize;

use super::Stats;
use crate::{postgres::PgError, worker::Worker};

const LEFT: &str = sql!("run/remaining");
const STILL_FAILED: &str = sql!("run/count_still_failed");
/// Due pastes are counted up to this.
const MOST_DUE: i32 = 1_000_000;

/// What is left when a run ends.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Left {
    /// Due right now; counted up to a cap.
    pub due: i64,
    /// Expired, but waiting for a retry after a failure.
    pub backing_off: i64,
    /// Failed permanently, in this run or an earlier one.
    pub dead_letters: i64,
    /// Due, but Postgres does not let them be claimed.
    pub unclaimable: i64,
    /// In open claims of other workers, as many as were claimed.
    pub claimed_by_others: i64,
    /// In progress without an open claim, and not reset by a sweep.
    pub stranded: i64,
}

impl Left {
    /// Whether more pastes may be due than were counted.
    pub fn is_capped(&self) -> bool {
        self.due >= i64::from(MOST_DUE)
    }
}

/// Counts what a run leaves behind, except stranded pastes.
pub(in crate::worker) async fn left(worker: &Worker) -> Result<Left, PgError> {
    let client = worker.pool.get().await?;
    let row = client.query_one(LEFT, &[&worker.id, &MOST_DUE]).await?;
    Ok(Left {
        due: row.get("due"),
        backing_off: row.get("backing_off"),
        dead_letters: row.get("dead_letters"),
        unclaimable: row.get("unclaimable"),
        claimed_by_others: row.get("claimed_by_others"),
        stranded: 0,
    })
}

/// Counts the pastes that failed in this run and still exist.
pub(in crate::worker) async fn failed_and_left(
    worker: &Worker,
    stats: &Stats,
) -> Result<u64, PgError> {
    let client = worker.pool.get().await?;
    let row = client.query_one(STILL_FAILED, &[&stats.failed, &stats.suspected]).await?;
    Ok(u64::try_from(row.get::<_, i64>("remaining")).unwrap_or_default())
}
