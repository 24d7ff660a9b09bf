//! Rows in progress that no open claim covers: something else marked them, their claim ended while
//! another transaction held them, or somebody ended or deleted it by hand. Nothing is ever left behind
//! for good, so they are reset by their age.

use std::sync::{Mutex, PoisonError};

use deadpool_postgres::Transaction;
use tokio_postgres::{Error, types::ToSql};
use tracing::{error, warn};

use super::clocks::correct_times;
use crate::{
    config::Settings,
    failpoint,
    postgres::{
        bisect::{ApplyError, Blame, Write, Writing, all_of, apply_to_good},
        planner::{IN_PICKED_ORDER, ROW_BY_ROW},
    },
};

const DEFERRED: &str = sql!("watchdog/stranded_deferred");
const UNCLAIMED: &str = sql!("watchdog/stranded_unclaimed");
const OF_ENDED_CLAIMS: &str = sql!("watchdog/stranded_by_ended_claims");
const RESET: &str = sql!("watchdog/stranded_reset");
const KEYS_TAKEN: &str = sql!("watchdog/stranded_keys_taken");
const ROWS_PER_TRANSACTION: i32 = 2000;
/// So many of those that cannot be put back are named.
const NAMED: usize = 10;
/// A trigger that undoes the correction of times must not keep a sweep busy for ever.
const MOST_CORRECTIONS: usize = 1000;

/// How far a sweep looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// What every tick can afford: silent claims, and rows without a claim.
    Quick,
    /// Also rows whose claim is not open any more.
    Thorough,
}

/// What this sweep has tried already.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// Rows that cannot be put back now.
    pastes: Vec<String>,
    corrections: usize,
}

/// A row to put back.
#[derive(Debug, Clone)]
struct StrandedRow {
    short_code: String,
    /// Its claim has let go of its reference.
    decremented: bool,
    /// Counts as an attempt.
    counts: bool,
    /// The object that it still has to delete, which nothing but its ended claim remembers.
    key: Option<KeptKey>,
}

#[derive(Debug, Clone)]
struct KeptKey {
    claim: i64,
    s3_key: String,
}

/// Looks at a bounded number of them, and resets those that can be. `None`: none are left.
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
    let thorough = (depth == Depth::Thorough).then_some(OF_ENDED_CLAIMS);
    for kind in [DEFERRED, UNCLAIMED].into_iter().chain(thorough) {
        let stranded = find(transaction, settings, kind, &tried.pastes).await?;
        if stranded.is_empty() {
            continue;
        }
        // None, if all of them must still wait: they keep no others from it.
        let (rows, left) = put_back(transaction, settings, &stranded).await?;
        failpoint::reached("stranded.reset");
        tried.pastes.extend(left);
        if rows > 0 {
            warn!(rows, "reset {rows} pastes that were in progress without an open claim");
        }
        return Ok(Some(rows));
    }
    Ok(None)
}

/// All but those that cannot be put back right now, because a trigger refuses it, say: these are found
/// by bisection, returned, and wait for the next sweep.
async fn put_back(
    transaction: &mut Transaction<'_>,
    settings: &Settings,
    stranded: &[StrandedRow],
) -> Result<(u64, Vec<String>), Error> {
    transaction.batch_execute(ROW_BY_ROW).await?;
    transaction.batch_execute(IN_PICKED_ORDER).await?;
    let cap_s = settings.worker.backoff_cap.as_secs_f64();
    let put_back = PutBack { cap_s, done: Mutex::default() };
    let applied =
        apply_to_good(transaction, stranded, &Blame::default(), |_| false, &put_back).await;
    let (rows, failed) = match applied {
        Ok(applied) => (applied.written, applied.failed),
        Err(ApplyError::Postgres(error)) => return Err(error),
        Err(ApplyError::Database(failed)) => (0, failed),
    };
    for bad in failed.iter().take(NAMED) {
        error!("paste {:?} cannot be reset: {}", bad.unit.short_code, bad.error);
    }
    let Done { mut waiting, taken } =
        put_back.done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !taken.is_empty() {
        let (claims, keys): (Vec<i64>, Vec<&str>) =
            taken.iter().map(|kept| (kept.claim, &*kept.s3_key)).unzip();
        transaction.execute(KEYS_TAKEN, &[&claims, &keys]).await?;
    }
    waiting.extend(failed.into_iter().map(|bad| bad.unit.short_code));
    Ok((rows, waiting))
}

struct PutBack {
    cap_s: f64,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    /// Those that still wait for their content row.
    waiting: Vec<String>,
    /// Keys that rows have taken over from their claims.
    taken: Vec<KeptKey>,
}

impl Write<StrandedRow> for PutBack {
    /// Returns how many are not in progress any more.
    fn write<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        part: &'a [StrandedRow],
    ) -> Writing<'a> {
        let codes: Vec<&str> = part.iter().map(|stranded_row| &*stranded_row.short_code).collect();
        let decremented: Vec<bool> =
            part.iter().map(|stranded_row| stranded_row.decremented).collect();
        let counts: Vec<bool> = part.iter().map(|stranded_row| stranded_row.counts).collect();
        let keys = part.iter().map(|stranded_row| stranded_row.key.as_ref());
        let keys: Vec<Option<&str>> = keys.map(|kept| kept.map(|kept| &*kept.s3_key)).collect();
        Box::pin(async move {
            let told: [&(dyn ToSql + Sync); 5] =
                [&codes, &decremented, &counts, &keys, &self.cap_s];
            let mut rows = transaction.query(RESET, &told).await?;
            rows.retain(|row| row.get::<_, Option<bool>>("is_changed") == Some(true));
            all_of(rows.len() as u64, part.len())?;
            let (waiting, back): (Vec<_>, Vec<_>) =
                rows.iter().partition(|row| row.get::<_, bool>("is_deferred"));
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.waiting.extend(waiting.iter().map(|row| row.get("short_code")));
            done.taken.extend(part.iter().filter_map(|stranded_row| stranded_row.key.clone()));
            Ok(back.len() as u64)
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
