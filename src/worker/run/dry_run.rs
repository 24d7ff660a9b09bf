//! What a run would delete right now. Changes nothing, claims nothing, sends nothing to S3.

use anyhow::{Result, anyhow};
use serde::Serialize;
use tokio_postgres::Client;

use super::brake::{Taken, brake};
use crate::{config::Brake, postgres::describe};

const DRY_RUN: &str = sql!("run/dry_run");

/// What would be deleted.
#[derive(Debug, Clone, Serialize)]
pub struct WouldDelete {
    /// Pastes that are due, whatever `--limit` is; unclaimable ones count, too.
    pub rows: i64,
    /// Objects of content whose references are all due, and pending object deletes.
    pub objects: i64,
    /// Size of that content; pending object deletes have no known size.
    pub bytes: i64,
    /// Why the safety brake would stop the run.
    pub brake: Option<String>,
}

/// Counts in a read-only transaction without a timeout.
pub async fn dry_run(
    client: &mut Client,
    settings: &Brake,
    limit: Option<u64>,
) -> Result<WouldDelete> {
    let counted = async {
        let transaction = client.build_transaction().read_only(true).start().await?;
        transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
        let row = transaction.query_one(DRY_RUN, &[]).await?;
        transaction.commit().await?;
        let brake = brake(client, settings, Taken::default(), limit).await?;
        Ok::<_, tokio_postgres::Error>((row, brake))
    };
    let counted =
        counted.await.map_err(|error| anyhow!("the dry run failed: {}", describe(&error)));
    let (row, brake) = counted?;
    let (rows, objects, bytes) = (row.get("rows"), row.get("objects"), row.get("bytes"));
    Ok(WouldDelete { rows, objects, bytes, brake })
}
