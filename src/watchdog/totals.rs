//! Adds the stats of ended claims and of runs to the totals, once each, and reads totals and a snapshot of
//! the fleet for the metrics: once a tick, never for a scrape.

use deadpool_postgres::Pool;

use crate::{
    config::Settings,
    failpoint,
    fleet::snapshot::Snapshot,
    metrics::{DURATION_BOUNDS_MS, Totals},
    postgres::PgError,
};

const COUNT_CLAIMS: &str = sql!("totals/count_claims");
const COUNT_RUNS: &str = sql!("totals/count_runs");
const PRUNE_RUNS: &str = sql!("prune/runs");
const TOTALS: &str = sql!("totals/read");
const ROWS_PER_STATEMENT: i32 = 1000;
/// The rest waits for the next tick, so that a tick is always short.
const STATEMENTS_PER_TICK: usize = 50;

/// Adds what is not in the totals yet, and prunes runs after `retention.history`.
pub async fn count(pool: &Pool, settings: &Settings) -> Result<(), PgError> {
    let client = pool.get().await?;
    let bounds: &[f64] = &DURATION_BOUNDS_MS;
    for _ in 0..STATEMENTS_PER_TICK {
        failpoint::reached("count.before");
        let claims = client.query_one(COUNT_CLAIMS, &[&ROWS_PER_STATEMENT, &bounds]).await?;
        let runs = client.query_one(COUNT_RUNS, &[&ROWS_PER_STATEMENT]).await?;
        failpoint::reached("count.after");
        let full = i64::from(ROWS_PER_STATEMENT);
        if claims.get::<_, i64>("counted") < full && runs.get::<_, i64>("counted") < full {
            break;
        }
    }
    let retention_s = settings.retention.history.as_secs_f64();
    client.execute(PRUNE_RUNS, &[&retention_s, &ROWS_PER_STATEMENT]).await?;
    Ok(())
}

/// Reads what the metrics show until the next tick.
pub async fn read(pool: &Pool, settings: &Settings) -> Result<(Totals, Snapshot), PgError> {
    let mut client = pool.get().await?;
    let snapshot = Snapshot::take(&mut client, settings).await?;
    let rows = client.query(TOTALS, &[]).await?;
    let totals = rows.iter().map(|row| {
        let name: (String, String) = (row.get("name"), row.get("label"));
        (name, row.get("value"))
    });
    Ok((totals.collect(), snapshot))
}
