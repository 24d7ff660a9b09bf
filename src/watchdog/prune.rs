//! Deletes claim history and tombstones after their retention.

use deadpool_postgres::{Pool, Transaction};
use tracing::{info, warn};

use crate::{
    config::Settings,
    failpoint,
    format::counted,
    postgres::{
        PgError,
        bisect::{ApplyError, Blame, Write, Writing, all_of, apply_to_good},
        planner::ROW_BY_ROW,
    },
};

const PRUNE_CLAIMS: &str = sql!("prune/claims");
const TOMBSTONES: &str = sql!("prune/lock_tombstones");
const PURGE: &str = sql!("prune/delete_tombstones");
const ROWS_PER_STATEMENT: i32 = 5000;
/// The rest waits for the next tick, so that a tick is always short.
const STATEMENTS_PER_TICK: usize = 20;

/// How many rows were deleted.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pruned {
    /// Ended claims older than `retention.history`.
    pub claims: u64,
    /// Tombstones older than `retention.tombstones`.
    pub tombstones: u64,
}

/// Prunes ended claims after `retention.history`, and purges tombstones after `retention.tombstones`.
pub async fn prune(pool: &Pool, settings: &Settings) -> Result<Pruned, PgError> {
    let history = settings.retention.history.as_secs_f64();
    let tombstones = settings.retention.tombstones.as_secs_f64();
    let pruned = Pruned {
        claims: prune_claims(pool, history).await?,
        tombstones: purge(pool, tombstones).await?,
    };
    if pruned.claims + pruned.tombstones > 0 {
        let Pruned { claims, tombstones } = pruned;
        info!(
            claims,
            tombstones,
            "pruned {} and purged {}",
            counted(claims, "ended claim"),
            counted(tombstones, "tombstone")
        );
    }
    Ok(pruned)
}

async fn prune_claims(pool: &Pool, retention_s: f64) -> Result<u64, PgError> {
    let client = pool.get().await?;
    let mut total = 0;
    for _ in 0..STATEMENTS_PER_TICK {
        failpoint::reached("prune.before");
        let rows = client.execute(PRUNE_CLAIMS, &[&retention_s, &ROWS_PER_STATEMENT]).await?;
        failpoint::reached("prune.after");
        total += rows;
        if rows < ROWS_PER_STATEMENT as u64 {
            break;
        }
    }
    Ok(total)
}

/// Purges tombstones. Those that cannot be deleted (locked, or refused by a trigger) are skipped
/// and logged.
async fn purge(pool: &Pool, retention_s: f64) -> Result<u64, PgError> {
    let mut client = pool.get().await?;
    let (mut total, mut kept) = (0, Vec::new());
    for _ in 0..STATEMENTS_PER_TICK {
        let mut transaction = client.transaction().await?;
        let found =
            transaction.query(TOMBSTONES, &[&retention_s, &ROWS_PER_STATEMENT, &kept]).await?;
        let codes: Vec<String> = found.iter().map(|row| row.get("short_code")).collect();
        if codes.is_empty() {
            break;
        }
        failpoint::reached("purge.before");
        transaction.batch_execute(ROW_BY_ROW).await?;
        let applied =
            apply_to_good(&mut transaction, &codes, &Blame::default(), |_| false, &Purge).await;
        let (purged, failed) = match applied {
            Ok(applied) => (applied.written, applied.failed),
            Err(ApplyError::Postgres(error)) => return Err(error.into()),
            Err(ApplyError::Database(failed)) => (0, failed),
        };
        transaction.commit().await?;
        failpoint::reached("purge.after");
        if let Some(first) = failed.first() {
            let (rows, code, error) = (failed.len(), &first.unit, &first.error);
            let what = counted(rows, "tombstone");
            warn!(rows, "cannot purge {what}; the first is {code:?}: {error}");
        }
        kept.extend(failed.into_iter().map(|failed| failed.unit));
        total += purged;
    }
    Ok(total)
}

struct Purge;

impl Write<String> for Purge {
    fn write<'a>(&'a self, transaction: &'a Transaction<'_>, part: &'a [String]) -> Writing<'a> {
        Box::pin(async move { all_of(transaction.execute(PURGE, &[&part]).await?, part.len()) })
    }
}
