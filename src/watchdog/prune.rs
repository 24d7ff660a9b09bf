//! Forgetting: claim history and tombstones past their retention.

use deadpool_postgres::{Pool, PoolError};
use tracing::info;

use crate::{config::Settings, failpoint};

const PRUNE_CLAIMS: &str = include_str!("../../sql/queries/prune_claims.sql");
const PURGE_TOMBSTONES: &str = include_str!("../../sql/queries/purge_tombstones.sql");
const ROWS_PER_STATEMENT: i32 = 5000;
/// The rest waits for the next tick: a sidecar never takes long.
const STATEMENTS_PER_TICK: usize = 20;

/// What was forgotten.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pruned {
    pub claims: u64,
    pub tombstones: u64,
}

pub async fn prune(pool: &Pool, settings: &Settings) -> Result<Pruned, PoolError> {
    let history = settings.retention.history.as_secs_f64();
    let tombstones = settings.retention.tombstones.as_secs_f64();
    let pruned = Pruned {
        claims: in_chunks(pool, PRUNE_CLAIMS, history, ["prune.before", "prune.after"]).await?,
        tombstones: in_chunks(pool, PURGE_TOMBSTONES, tombstones, ["purge.before", "purge.after"])
            .await?,
    };
    if pruned.claims + pruned.tombstones > 0 {
        let Pruned { claims, tombstones } = pruned;
        info!(claims, tombstones, "pruned {claims} old claims, purged {tombstones} tombstones");
    }
    Ok(pruned)
}

async fn in_chunks(
    pool: &Pool,
    statement: &str,
    retention_s: f64,
    [before, after]: [&'static str; 2],
) -> Result<u64, PoolError> {
    let client = pool.get().await?;
    let mut total = 0;
    for _ in 0..STATEMENTS_PER_TICK {
        failpoint::reached(before);
        let rows = client.execute(statement, &[&retention_s, &ROWS_PER_STATEMENT]).await?;
        failpoint::reached(after);
        total += rows;
        if rows < ROWS_PER_STATEMENT as u64 {
            break;
        }
    }
    Ok(total)
}
