//! The bucket: may we delete in it, and is it the one that this database belongs to?

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::timeout;
use tokio_postgres::Client;

use super::finding::{Outcome, ok};
use crate::{config::Settings, fleet, objects::Objects};

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn deletes(settings: &Settings) -> Outcome {
    match timeout(PATIENCE, probe(settings)).await {
        Ok(Ok(bucket)) => ok(format!("deleting works in {bucket:?}")),
        Ok(Err(error)) => Outcome::failed(&error),
        Err(_) => Outcome::failed(&anyhow!(
            "S3 did not answer within {PATIENCE:?}; check that it runs and that AWS_ENDPOINT_URL \
             is right"
        )),
    }
}

async fn probe(settings: &Settings) -> Result<String> {
    let objects = Objects::new(settings).await?;
    objects.probe().await?;
    Ok(objects.bucket().to_string())
}

pub(super) async fn belongs(db: &Client, settings: &Settings) -> Result<Outcome> {
    let fleet = fleet::read(db).await?;
    let bucket = settings.bucket()?;
    if fleet.bucket.is_none() {
        return Ok(ok(format!("none yet; the first run will bind this database to {bucket:?}")));
    }
    fleet.belongs_to(bucket, &settings.s3.prefix)?;
    Ok(ok(format!("this database belongs to {bucket:?}")))
}
