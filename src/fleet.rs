//! What concerns the fleet as a whole: which bucket this database belongs to, and whether it is
//! paused.

use anyhow::{Context, Result, anyhow, bail};
use tokio_postgres::Client;

use crate::{
    failpoint,
    postgres::{describe, remedy},
    printable::printable,
};

const FLEET: &str = include_str!("../sql/queries/fleet.sql");
const BIND_BUCKET: &str = include_str!("../sql/queries/bind_bucket.sql");

/// The one row of `cleanup_fleet`.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub database: String,
    pub bucket: Option<String>,
    pub prefix: Option<String>,
    /// The reason, when the fleet is paused.
    pub paused: Option<String>,
}

pub async fn read(client: &Client) -> Result<Fleet> {
    let row = client.query_opt(FLEET, &[]).await;
    let row = row.map_err(|error| {
        anyhow!("cannot read cleanup_fleet: {}; {}", describe(&error), remedy(&error))
    })?;
    let row = row.context("cleanup_fleet is empty; run `cleanupctl migrate`")?;
    let reason: Option<String> = row.get("pause_reason");
    Ok(Fleet {
        database: row.get("database"),
        bucket: row.get("bucket"),
        prefix: row.get("prefix"),
        paused: row
            .get::<_, bool>("paused")
            .then(|| reason.map_or("no reason given".into(), |reason| printable(&reason))),
    })
}

/// One database, one bucket. A wrong bucket makes every delete "succeed" and leaks everything.
pub async fn bind_bucket(client: &Client, bucket: &str, prefix: &str) -> Result<()> {
    let known = read(client).await?;
    if known.bucket.is_none() {
        failpoint::reached("start.before_binding");
        client
            .execute(BIND_BUCKET, &[&bucket, &prefix])
            .await
            .map_err(|error| anyhow!("cannot remember the bucket: {}", describe(&error)))?;
        failpoint::reached("start.bound");
    }
    read(client).await?.belongs_to(bucket, prefix)
}

impl Fleet {
    /// Refuses any other bucket or prefix than the one that the database remembers.
    pub fn belongs_to(self, bucket: &str, prefix: &str) -> Result<()> {
        let known = (self.bucket.unwrap_or_default(), self.prefix.unwrap_or_default());
        if known != (bucket.to_string(), prefix.to_string()) {
            bail!(
                "this database belongs to bucket {:?} with prefix {:?}, not to {bucket:?} with \
                 prefix {prefix:?}; correct S3_BUCKET or CLEANUP_S3_BUCKET, or, if the bodies \
                 really moved, run `cleanupctl migrate --rebind-bucket`",
                known.0,
                known.1,
            );
        }
        Ok(())
    }
}
