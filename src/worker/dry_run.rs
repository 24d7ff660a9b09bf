//! What a run would delete right now. Changes nothing, claims nothing, asks S3 nothing.

use anyhow::Result;
use serde::Serialize;
use tokio_postgres::Client;

use crate::postgres::describe;

const DRY_RUN: &str = include_str!("../../sql/queries/dry_run.sql");

/// What would go.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WouldDelete {
    pub rows: i64,
    pub objects: i64,
    pub bytes: i64,
}

/// Counts in a read-only transaction that may take its time.
pub async fn dry_run(client: &mut Client) -> Result<WouldDelete> {
    let counted = async {
        let transaction = client.build_transaction().read_only(true).start().await?;
        transaction.batch_execute("SET LOCAL statement_timeout = 0").await?;
        let row = transaction.query_one(DRY_RUN, &[]).await?;
        transaction.commit().await?;
        Ok::<_, tokio_postgres::Error>(row)
    };
    let row = counted.await.map_err(|error| anyhow::anyhow!("dry run: {}", describe(&error)))?;
    Ok(WouldDelete { rows: row.get("rows"), objects: row.get("objects"), bytes: row.get("bytes") })
}
