//! A store without DeleteObjects: one worker beside the store's own limit, which is bare requests for the
//! same number of objects, as many in flight as the worker has.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use crate::{
    Result,
    fleet::{self, BUCKET, Drained},
    literal::client,
    stage::Stage,
    stub::Stub,
};

const LATENCY: Duration = Duration::from_millis(30);
const IN_FLIGHT: usize = 64;
/// Leaves this many expired pastes, each with an object of its own.
const LEAVE: &str = "
    DELETE FROM pastes WHERE short_code NOT IN (
        SELECT short_code FROM pastes JOIN content USING (content_hash)
        WHERE expires_at <= now() AND ref_count = 1 LIMIT $rows);
    DELETE FROM content WHERE content_hash NOT IN (SELECT content_hash FROM pastes)";

/// Returns the limit in rows per second, and what a worker reached.
pub(crate) async fn measure(stage: &Stage, rows: u64) -> Result<(f64, Drained)> {
    let stub = Stub::without_bulk(LATENCY).await?;
    let copy = stage.copy("bench_singles").await?;
    copy.db.batch_execute(&LEAVE.replace("$rows", &rows.to_string())).await?;
    let s3 = client(&stub.url).await;
    let keys: Vec<String> = copy.keys().await?.into_iter().collect();
    let (started, number) = (Instant::now(), keys.len());
    stream::iter(keys)
        .map(|key| s3.delete_object().bucket(BUCKET).key(key).send())
        .buffer_unordered(IN_FLIGHT)
        .try_for_each(async |_| Ok(()))
        .await?;
    let limit = number as f64 / started.elapsed().as_secs_f64();
    let drained = fleet::checked(stage, &copy, &stub, 1).await?;
    stage.drop(copy).await?;
    Ok((limit, drained))
}
