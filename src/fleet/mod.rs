//! What concerns the fleet as a whole: the bucket that this database is bound to, the pause, and the
//! watchdog's last tick.

pub mod backlog;
pub mod snapshot;
pub mod stranded;

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio_postgres::Client;

use self::snapshot::is_in_the_future;
use crate::{
    config::Settings,
    failpoint, format,
    postgres::{describe, remedy},
    printable::printable,
    problem::Problem,
};

const FLEET: &str = sql!("fleet/read");
const BIND_BUCKET: &str = sql!("fleet/bind_bucket");

/// The one row of `cleanup_fleet`.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// The name of the connected database: a part of the key of the claim lock.
    pub database: String,
    /// The only bucket that this database may be used with; `None` before the first run.
    pub bucket: Option<String>,
    /// `s3.prefix` as it was bound together with the bucket.
    pub prefix: Option<String>,
    /// The reason, when the fleet is paused.
    pub paused: Option<String>,
    /// Seconds since a watchdog last completed a tick; `None`: never.
    pub watchdog_s_ago: Option<f64>,
}

/// Reads the state of the fleet.
pub async fn read(client: &Client) -> Result<Fleet, Problem> {
    let row = client.query_opt(FLEET, &[]).await;
    let row = row.map_err(|error| {
        Problem::new(format!("cannot read cleanup_fleet: {}", describe(&error)), remedy(&error))
    })?;
    let row =
        row.ok_or_else(|| Problem::new("cleanup_fleet is empty", "run `cleanupctl migrate`"))?;
    let reason: Option<String> = row.get("pause_reason");
    Ok(Fleet {
        database: row.get("database"),
        bucket: row.get("bucket"),
        prefix: row.get("prefix"),
        watchdog_s_ago: row.get("watchdog_s_ago"),
        paused: row
            .get::<_, bool>("paused")
            .then(|| reason.map_or("no reason given".into(), |reason| printable(&reason))),
    })
}

/// Binds the database to this bucket the first time, and refuses any other bucket later. In a wrong bucket
/// every delete would "succeed", and all objects would be leaked.
pub async fn bind_bucket(client: &Client, bucket: &str, prefix: &str) -> Result<()> {
    let known = read(client).await?;
    if known.bucket.is_none() {
        failpoint::reached("start.before_binding");
        client.execute(BIND_BUCKET, &[&bucket, &prefix]).await.map_err(|error| {
            anyhow!("cannot bind the database to bucket {bucket:?}: {}", describe(&error))
        })?;
        failpoint::reached("start.bound");
    }
    Ok(read(client).await?.belongs_to(bucket, prefix)?)
}

/// Without a tick for this long no watchdog is running: one started by cron ticks every five minutes.
const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(15 * 60);

impl Fleet {
    /// Returns when a claim will be reset that may be reset in this many seconds: by the watchdog, if one
    /// has ticked recently, or else at the start of the next run.
    pub fn reset_in(&self, seconds: f64, settings: &Settings) -> String {
        let timeout = WATCHDOG_TIMEOUT.max(settings.watchdog.tick * 3).as_secs_f64();
        let left = format::seconds(seconds.max(0.0));
        match self.watchdog_s_ago {
            Some(ago) if is_in_the_future(ago) => {
                without_watchdog("the watchdog's last tick is in the future", &left)
            }
            Some(ago) if ago <= timeout => format!("the watchdog resets it in {left}"),
            Some(ago) => {
                let reason = format!("no watchdog has run for {}", format::seconds(ago));
                without_watchdog(&reason, &left)
            }
            None => without_watchdog("no watchdog has ever run", &left),
        }
    }

    /// Returns an error if the database is bound to another bucket or prefix.
    pub fn belongs_to(self, bucket: &str, prefix: &str) -> Result<(), OtherBucket> {
        OtherBucket::unless(self.bucket, self.prefix, bucket, prefix)
    }
}

/// The database is bound to another bucket or prefix than the settings name.
#[derive(thiserror::Error, Debug)]
#[error("{}", Problem::from(self))]
pub struct OtherBucket {
    bound: (String, String),
    ours: (String, String),
}

impl From<&OtherBucket> for Problem {
    fn from(OtherBucket { bound, ours }: &OtherBucket) -> Self {
        Self::new(
            format!(
                "this database belongs to bucket {:?} with prefix {:?}, but the settings name bucket \
                 {:?} with prefix {:?}",
                bound.0, bound.1, ours.0, ours.1
            ),
            "correct S3_BUCKET or CLEANUP_S3_BUCKET, or, if the objects were moved, run `cleanupctl \
             migrate --rebind-bucket`",
        )
    }
}

impl OtherBucket {
    /// Returns an error unless the database is bound to the bucket and prefix of the settings.
    pub fn unless(
        bound_bucket: Option<String>,
        bound_prefix: Option<String>,
        bucket: &str,
        prefix: &str,
    ) -> Result<(), Self> {
        let bound = (bound_bucket.unwrap_or_default(), bound_prefix.unwrap_or_default());
        let ours = (bucket.to_string(), prefix.to_string());
        if bound == ours { Ok(()) } else { Err(Self { bound, ours }) }
    }
}

/// Returns when something is reset that no watchdog resets.
fn without_watchdog(reason: &str, left: &str) -> String {
    format!(
        "it can be reset in {left}, but {reason}: start cleanup-watchdog, or run `cleanup-watchdog \
         --once` then; otherwise the next run resets it"
    )
}
