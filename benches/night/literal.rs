//! A naive implementation: marks a thousand rows, then decrements, deletes the object and deletes the
//! row, one paste after the other.

use aws_sdk_s3::Client as S3;
use tokio::time::Instant;

use crate::{Result, fleet::BUCKET, stage::Copy};

const SELECT: &str = "SELECT short_code, content_hash FROM pastes
    WHERE expires_at < now() AND deletion_status = 'NOT_EXPIRED' LIMIT 1000";
const MARK: &str = "UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS',
    deletion_initiated_at = now() WHERE short_code = ANY ($1)";
const DECREMENT: &str = "UPDATE content SET ref_count = ref_count - 1 WHERE content_hash = $1
    RETURNING ref_count, s3_key";
const DELETE_CONTENT: &str = "DELETE FROM content WHERE content_hash = $1";
const DELETE: &str = "DELETE FROM pastes WHERE short_code = $1";

/// Returns the rows per second, over this many rows.
pub(crate) async fn measure(copy: &Copy, endpoint: &str, rows: u64) -> Result<f64> {
    let (db, s3) = (&copy.db, client(endpoint).await);
    let [select, mark, decrement, delete_content, delete] = [
        db.prepare(SELECT).await?,
        db.prepare(MARK).await?,
        db.prepare(DECREMENT).await?,
        db.prepare(DELETE_CONTENT).await?,
        db.prepare(DELETE).await?,
    ];
    let (started, mut done) = (Instant::now(), 0);
    while done < rows {
        let batch = db.query(&select, &[]).await?;
        let codes: Vec<&str> = batch.iter().map(|row| row.get(0)).collect();
        db.execute(&mark, &[&codes]).await?;
        for row in &batch {
            let (code, hash): (&str, &[u8]) = (row.get(0), row.get(1));
            let left = db.query_one(&decrement, &[&hash]).await?;
            if left.get::<_, i32>(0) == 0 {
                let key: &str = left.get(1);
                s3.delete_object().bucket(BUCKET).key(key).send().await?;
                db.execute(&delete_content, &[&hash]).await?;
            }
            db.execute(&delete, &[&code]).await?;
        }
        done += batch.len() as u64;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}

pub(crate) async fn client(endpoint: &str) -> S3 {
    let shared = aws_config::from_env().load().await;
    let config = aws_sdk_s3::config::Builder::from(&shared);
    S3::from_conf(config.endpoint_url(endpoint).force_path_style(true).build())
}
