//! Resets stranded rows: rows in progress without an open claim. Another program marked them, their claim
//! ended while another transaction had them locked, or an operator ended or deleted the claim by hand. No
//! row may stay in progress forever, so they are reset by their age.

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, types::ToSql};
use tracing::{error, warn};

use super::clocks::correct_times;
use crate::{
    config::Settings,
    failpoint,
    format::counted,
    mutex::Mutex,
    postgres::{
        bisect::{ApplyError, Blame, Write, Writing, all_of, apply_to_good},
        planner::{IN_PICKED_ORDER, ROW_BY_ROW},
    },
};

const DEFERRED: &str = sql!("stranded/deferred");
const UNCLAIMED: &str = sql!("stranded/unclaimed");
const BY_ENDED_CLAIMS: &str = sql!("stranded/by_ended_claims");
const RESET: &str = sql!("stranded/reset");
const KEYS_TAKEN: &str = sql!("stranded/remove_taken_keys");
const ROWS_PER_TRANSACTION: i32 = 2000;
/// How many rows that cannot be reset are logged by name.
const NAMED: usize = 10;
/// A trigger that undoes the correction of times must not keep a sweep busy forever.
const MOST_CORRECTIONS: usize = 1000;

/// How thoroughly a sweep searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Cheap enough for every tick: expired claims, and rows without a claim.
    Quick,
    /// Also rows whose claim has ended.
    Thorough,
}

/// What this sweep has already tried.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Rows that cannot be reset now.
    pastes: Vec<String>,
    corrections: usize,
}

/// A row to reset.
#[derive(Debug, Clone)]
struct StrandedRow {
    short_code: String,
    /// Its claim has subtracted its reference.
    decremented: bool,
    /// The reset counts as an attempt.
    counts: bool,
    /// The key of its pending object delete, if only its ended claim has it.
    key: Option<KeptKey>,
}

#[derive(Debug, Clone)]
struct KeptKey {
    claim: i64,
    s3_key: String,
}

/// Resets a bounded number of stranded rows, and returns how many. `None`: none are left.
pub(super) async fn reset_stranded(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    depth: Depth,
    tried: &mut Tried,
) -> Result<Option<u64>, Error> {
    failpoint::reached("stranded.before");
    let more = correct_times(transaction, settings).await?;
    failpoint::reached("stranded.stamped");
    if more && tried.corrections < MOST_CORRECTIONS {
        tried.corrections += 1;
        return Ok(Some(0));
    }
    let thorough = (depth == Depth::Thorough).then_some(BY_ENDED_CLAIMS);
    for kind in [DEFERRED, UNCLAIMED].into_iter().chain(thorough) {
        let stranded = find(transaction, settings, kind, &tried.pastes).await?;
        if stranded.is_empty() {
            continue;
        }
        // May be 0 rows, if all of them must still wait: then the next search goes on without them.
        let (rows, left) = reset_rows(transaction, settings, &stranded).await?;
        failpoint::reached("stranded.reset");
        tried.pastes.extend(left);
        if rows > 0 {
            let what = counted(rows, "stranded paste");
            warn!(rows, "reset {what}, which had no open claim");
        }
        return Ok(Some(rows));
    }
    Ok(None)
}

/// Resets all rows except those that cannot be reset now, for example because a trigger refuses it: these
/// are found by bisection and returned, and wait for the next sweep.
async fn reset_rows(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    stranded: &[StrandedRow],
) -> Result<(u64, Vec<String>), Error> {
    transaction.batch_execute(ROW_BY_ROW).await?;
    transaction.batch_execute(IN_PICKED_ORDER).await?;
    let cap_s = settings.worker.backoff_cap.as_secs_f64();
    let write = ResetRows { cap_s, done: Mutex::default() };
    let applied = apply_to_good(transaction, stranded, &Blame::default(), |_| false, &write).await;
    let (rows, failed) = match applied {
        Ok(applied) => (applied.written, applied.failed),
        Err(ApplyError::Postgres(error)) => return Err(error),
        Err(ApplyError::Database(failed)) => (0, failed),
    };
    for bad in failed.iter().take(NAMED) {
        error!("cannot reset stranded paste {:?}: {}", bad.unit.short_code, bad.error);
    }
    let Done { mut deferred, taken } = write.done.into_inner();
    if !taken.is_empty() {
        let (claims, keys): (Vec<i64>, Vec<&str>) =
            taken.iter().map(|kept| (kept.claim, &*kept.s3_key)).unzip();
        transaction.execute(KEYS_TAKEN, &[&claims, &keys]).await?;
    }
    deferred.extend(failed.into_iter().map(|bad| bad.unit.short_code));
    Ok((rows, deferred))
}

struct ResetRows {
    cap_s: f64,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    /// Rows that still wait for their content row.
    deferred: Vec<String>,
    /// Keys that rows have taken over from their claims.
    taken: Vec<KeptKey>,
}

impl Write<StrandedRow> for ResetRows {
    /// Returns how many rows are no longer in progress.
    fn write<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        part: &'a [StrandedRow],
    ) -> Writing<'a> {
        let codes: Vec<&str> = part.iter().map(|row| &*row.short_code).collect();
        let decremented: Vec<bool> = part.iter().map(|row| row.decremented).collect();
        let counts: Vec<bool> = part.iter().map(|row| row.counts).collect();
        let keys = part.iter().map(|row| row.key.as_ref());
        let keys: Vec<Option<&str>> = keys.map(|kept| kept.map(|kept| &*kept.s3_key)).collect();
        Box::pin(async move {
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&codes, &decremented, &counts, &keys, &self.cap_s];
            let mut rows = transaction.query(RESET, &parameters).await?;
            rows.retain(|row| row.get::<_, Option<bool>>("is_changed") == Some(true));
            all_of(rows.len() as u64, part.len())?;
            let (deferred, reset): (Vec<_>, Vec<_>) =
                rows.iter().partition(|row| row.get::<_, bool>("is_deferred"));
            let mut done = self.done.lock();
            done.deferred.extend(deferred.iter().map(|row| row.get("short_code")));
            done.taken.extend(part.iter().filter_map(|row| row.key.clone()));
            Ok(reset.len() as u64)
        })
    }
}

async fn find(
    transaction: &Transaction<'_>,
    settings: &Settings,
    query: &str,
    tried: &[String],
) -> Result<Vec<StrandedRow>, Error> {
    let stuck_after = settings.watchdog.stuck_after.as_secs_f64();
    let rows = transaction.query(query, &[&stuck_after, &ROWS_PER_TRANSACTION, &tried]).await?;
    let stranded_row = |row: &tokio_postgres::Row| StrandedRow {
        short_code: row.get("short_code"),
        decremented: row.get("decremented"),
        counts: row.get("counts"),
        key: row
            .get::<_, Option<String>>("kept_key")
            .map(|s3_key| KeptKey { claim: row.get("claim_id"), s3_key }),
    };
    Ok(rows.iter().map(stranded_row).collect())
}
