//! Probes whether the bucket has the object of a paste. S3 may be unavailable or deny the answer; the rest
//! of the explanation does not depend on it.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::Serialize;
use tokio::time::timeout;

use crate::{config::Settings, fleet::Fleet, objects::Objects};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Object {
    Exists,
    Missing,
    /// The probe failed, for this reason.
    Unknown(String),
}

pub(super) async fn probe(settings: &Settings, fleet: &Fleet, s3_key: &str) -> Object {
    let exists = timeout(TIMEOUT, exists(settings, fleet, s3_key)).await;
    let exists = exists.unwrap_or_else(|_| Err(anyhow!("S3 did not answer within {TIMEOUT:?}")));
    match exists {
        Ok(true) => Object::Exists,
        Ok(false) => Object::Missing,
        Err(error) => Object::Unknown(format!("{error:#}")),
    }
}

async fn exists(settings: &Settings, fleet: &Fleet, s3_key: &str) -> Result<bool> {
    let objects = Objects::new(settings).await?;
    // In the wrong bucket every object would be missing.
    if fleet.bucket.is_some() {
        fleet.clone().belongs_to(objects.bucket(), objects.prefix())?;
    }
    Ok(objects.exists(s3_key).await?)
}
