//! The bucket: may we delete in it, and is it the one that this database belongs to?

use std::time::Duration;

use anyhow::{Result, anyhow};
use aws_sdk_s3::{error::ProvideErrorMetadata, types::BucketVersioningStatus};
use tokio::time::timeout;
use tokio_postgres::Client;

use super::finding::{Outcome, left_out, ok, warning};
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

/// A versioned bucket only gets delete markers; objects under a lock cannot be deleted at all.
pub(super) async fn versions(settings: &Settings) -> Outcome {
    match timeout(PATIENCE, look_for_versions(settings)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::failed(&error),
        Err(_) => left_out("S3 does not answer"),
    }
}

async fn look_for_versions(settings: &Settings) -> Result<Outcome> {
    let objects = Objects::new(settings).await?;
    let (s3, bucket) = (objects.client(), objects.bucket());
    let lock = s3.get_object_lock_configuration().bucket(bucket).send().await;
    let locked = lock.is_ok_and(|lock| {
        lock.object_lock_configuration.is_some_and(|lock| lock.object_lock_enabled.is_some())
    });
    if locked {
        return Ok(warning(
            "object lock is on: an object under retention or legal hold cannot be deleted",
            "such pastes end as dead letters; keep pastes in a bucket without object lock",
        ));
    }
    Ok(match s3.get_bucket_versioning().bucket(bucket).send().await {
        Ok(answer) if answer.status == Some(BucketVersioningStatus::Enabled) => warning(
            "versioning is on: a deleted body stays as a noncurrent version",
            "set a lifecycle rule that expires noncurrent versions and delete markers",
        ),
        Ok(_) => ok("not versioned, no object lock"),
        Err(error) => {
            let code = error.code().unwrap_or("no answer").to_string();
            left_out(format!("cannot be seen ({code}); s3:GetBucketVersioning allows it"))
        }
    })
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
