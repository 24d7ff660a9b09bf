//! The limit: plain set-based SQL that deletes the same pastes and content rows, a thousand at a time,
//! on one connection. No claim, no lease, no fence, no objects, no recovery after a crash.

use std::{collections::HashMap, time::SystemTime};

use tokio::time::Instant;

use crate::{Result, stage::Copy};

const DELETE: &str = "
    DELETE FROM pastes
    USING (SELECT short_code, coalesce(retry_at, expires_at) AS due FROM pastes
           WHERE deletion_status = 'NOT_EXPIRED' AND coalesce(retry_at, expires_at) <= now()
             AND coalesce(retry_at, expires_at) >= coalesce($1::timestamptz, '-infinity')
           ORDER BY coalesce(retry_at, expires_at) LIMIT 1000) AS batch
    WHERE pastes.short_code = batch.short_code
    RETURNING content_hash, due";
const SUBTRACT: &str = "
    UPDATE content SET ref_count = content.ref_count - batch.refs
    FROM unnest($1::bytea[], $2::int[]) AS batch (content_hash, refs)
    WHERE content.content_hash = batch.content_hash";
const DELETE_UNREFERENCED: &str =
    "DELETE FROM content WHERE content_hash = ANY ($1) AND ref_count = 0";

/// Returns the rows per second.
pub(crate) async fn measure(copy: &mut Copy) -> Result<f64> {
    let (started, mut rows, mut mark) = (Instant::now(), 0, None::<SystemTime>);
    let delete = copy.db.prepare(DELETE).await?;
    let (subtract, clean) =
        (copy.db.prepare(SUBTRACT).await?, copy.db.prepare(DELETE_UNREFERENCED).await?);
    loop {
        let transaction = copy.db.transaction().await?;
        let batch = transaction.query(&delete, &[&mark]).await?;
        if batch.is_empty() {
            break;
        }
        let mut references: HashMap<&[u8], i32> = HashMap::new();
        for row in &batch {
            *references.entry(row.get("content_hash")).or_default() += 1;
            mark = mark.max(row.get::<_, Option<SystemTime>>("due"));
        }
        let (hashes, counts): (Vec<&[u8]>, Vec<i32>) = references.into_iter().unzip();
        transaction.execute(&subtract, &[&hashes, &counts]).await?;
        transaction.execute(&clean, &[&hashes]).await?;
        transaction.commit().await?;
        rows += batch.len();
    }
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}
