//! The paste's body: does the bucket have it? S3 may be away, or not let us see; the rest of the
//! explanation does not depend on it.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::Serialize;
use tokio::time::timeout;

use crate::{config::Settings, fleet::Fleet, objects::Objects};

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Serialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Object {
    There,
    Missing,
    /// Could not be looked at, for this reason.
    NotSeen(String),
}

pub(super) async fn look_for(settings: &Settings, fleet: &Fleet, s3_key: &str) -> Object {
    let asked = timeout(TIMEOUT, ask(settings, fleet, s3_key)).await;
    let asked = asked.unwrap_or_else(|_| Err(anyhow!("S3 did not answer within {TIMEOUT:?}")));
    match asked {
        Ok(true) => Object::There,
        Ok(false) => Object::Missing,
        Err(error) => Object::NotSeen(format!("{error:#}")),
    }
}

async fn ask(settings: &Settings, fleet: &Fleet, s3_key: &str) -> Result<bool> {
    let objects = Objects::new(settings).await?;
    // In a wrong bucket everything would be missing.
    if fleet.bucket.is_some() {
        fleet.clone().belongs_to(objects.bucket(), objects.prefix())?;
    }
    objects.exists(s3_key).await.map_err(|reason| anyhow!(reason))
}
