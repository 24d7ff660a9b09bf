//! What concerns the fleet as a whole: which bucket this database belongs to, and whether it is
//! paused.

pub mod backlog;
pub mod snapshot;

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tokio_postgres::Client;

use self::snapshot::is_in_the_future;
use crate::{
    config::Settings,
    failpoint,
    postgres::{describe, remedy},
    printable::printable,
};

const FLEET: &str = sql!("fleet/read");
const BIND_BUCKET: &str = sql!("fleet/bind_bucket");

/// The one row of `cleanup_fleet`.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    pub database: String,
    pub bucket: Option<String>,
    pub prefix: Option<String>,
    /// The reason, when the fleet is paused.
    pub paused: Option<String>,
    /// When a watchdog last made its round; never: `None`.
    pub watchdog_s_ago: Option<f64>,
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
        watchdog_s_ago: row.get("watchdog_s_ago"),
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
    Ok(read(client).await?.belongs_to(bucket, prefix)?)
}

/// A watchdog that cron starts comes by every five minutes.
const WATCHDOG_IS_AWAY_AFTER: Duration = Duration::from_secs(15 * 60);

impl Fleet {
    /// What happens to something that a watchdog resets in so many seconds. Only a watchdog that has
    /// made its round lately will.
    pub fn reset_in(&self, seconds: f64, settings: &Settings) -> String {
        let away = WATCHDOG_IS_AWAY_AFTER.max(settings.watchdog.tick * 3).as_secs_f64();
        let left = spell(seconds.max(0.0));
        match self.watchdog_s_ago {
            Some(ago) if is_in_the_future(ago) => format!(
                "when a watchdog last ran is not known (its time is in the future): the start of the \
                 next run resets it, not before {left} from now; start cleanup-watchdog, or run \
                 `cleanup-watchdog --once` then"
            ),
            Some(ago) if ago <= away => format!("the watchdog resets it in {left}"),
            Some(ago) => format!(
                "no watchdog has run for {}: the start of the next run resets it, not before {left} \
                 from now; start cleanup-watchdog, or run `cleanup-watchdog --once` then",
                spell(ago)
            ),
            None => format!(
                "no watchdog has ever run: the start of the next run resets it, not before {left} \
                 from now; start cleanup-watchdog, or run `cleanup-watchdog --once` then"
            ),
        }
    }

    /// Refuses any other bucket or prefix than the one that the database remembers.
    pub fn belongs_to(self, bucket: &str, prefix: &str) -> Result<(), OtherBucket> {
        OtherBucket::unless(self.bucket, self.prefix, bucket, prefix)
    }
}

/// The database is bound to another bucket or prefix than this program's.
#[derive(thiserror::Error, Debug)]
#[error(
    "this database belongs to bucket {:?} with prefix {:?}, not to {:?} with prefix {:?}; correct \
     S3_BUCKET or CLEANUP_S3_BUCKET, or, if the bodies really moved, run `cleanupctl migrate \
     --rebind-bucket`",
    .bound.0, .bound.1, .ours.0, .ours.1
)]
pub struct OtherBucket {
    bound: (String, String),
    ours: (String, String),
}

impl OtherBucket {
    /// Compares what the database remembers with the bucket and prefix of this program.
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

fn spell(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    humantime::format_duration(whole).to_string()
}
