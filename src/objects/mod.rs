//! The objects in S3.
//!
//! `delete` deletes and reads the answer for every key: `request` sends, `classify` reads, `bulk` knows
//! what the store takes in one request, `single` deletes one by one, `probe` checks the store. `pace`
//! limits keys per second, `breaker` keeps workers from claiming while the store fails, `error_counts`
//! counts failures for the metrics. `list` lists the bucket for the audit (`undecodable`: although its
//! keys are no XML), and `exists` is the only place that checks for a single object.

mod breaker;
mod bulk;
mod classify;
mod delete;
mod error;
mod error_counts;
mod exists;
mod list;
mod md5;
mod pace;
mod probe;
mod request;
mod single;
mod spelling;
mod undecodable;
mod versioning;

use std::{sync::Arc, time::Duration};

use aws_sdk_s3::{
    Client,
    config::{Builder, Region, retry::RetryConfig, timeout::TimeoutConfig},
};

use crate::config::{BulkDelete, Checksum, ConfigError, Settings};
pub use delete::Deleted;
pub use error::{Action, ObjectsError, S3_REMEDY};
pub use error_counts::CLASSES as ERROR_CLASSES;
pub use list::{Listed, Page, Start};
pub use spelling::is_odd;

/// The most keys that S3 takes in one DeleteObjects, and the most that it lists on a page.
pub const KEYS_PER_CALL: usize = 1000;
/// The end of a key that no object has.
const PROBE: &str = ".paste-cleanup-probe";

/// A client for one bucket. Clones share pace, breaker and error counts.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    bucket: String,
    prefix: String,
    deadline: Duration,
    has_endpoint: bool,
    bulk: Arc<bulk::Bulk>,
    pace: Arc<pace::Pace>,
    breaker: Arc<breaker::Breaker>,
    error_counts: Arc<error_counts::ErrorCounts>,
    md5: bool,
}

impl Objects {
    /// Builds a client from the settings and the usual AWS variables and files. Sends nothing yet.
    pub async fn new(settings: &Settings) -> Result<Self, ConfigError> {
        let bucket = settings.bucket()?.to_string();
        let shared = aws_config::from_env().load().await;
        let mut config = Builder::from(&shared)
            // `delete` and `list` retry themselves, within the deadline and at the worker's pace.
            .retry_config(RetryConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(Duration::from_secs(3))
                    .operation_timeout(settings.s3.deadline.min(Duration::from_secs(30)))
                    .build(),
            )
            .force_path_style(settings.s3.path_style.unwrap_or(settings.s3.endpoint.is_some()));
        if let Some(endpoint) = &settings.s3.endpoint {
            config = config.endpoint_url(endpoint);
        }
        if shared.region().is_none() {
            config = config.region(Region::new("us-east-1"));
        }
        Ok(Self {
            client: Client::from_conf(config.build()),
            bucket,
            prefix: settings.s3.prefix.clone(),
            deadline: settings.s3.deadline,
            has_endpoint: settings.s3.endpoint.is_some(),
            bulk: bulk::Bulk::new(settings.s3.bulk_delete).into(),
            pace: pace::Pace::new(settings.s3.max_keys_per_second).into(),
            breaker: Arc::default(),
            error_counts: Arc::default(),
            md5: settings.s3.checksum == Checksum::Md5,
        })
    }

    /// Returns the SDK's client, for the tools that upload.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a client for the same bucket that deletes in bulk with this checksum.
    pub fn with_checksum(&self, checksum: Checksum) -> Self {
        let bulk = bulk::Bulk::new(BulkDelete::Always).into();
        Self { md5: checksum == Checksum::Md5, bulk, ..self.clone() }
    }

    /// Returns the name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns `s3.prefix`; empty: the whole bucket.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns what calls are waiting for before they are sent, if they are.
    pub fn waiting_for(&self) -> Option<String> {
        self.pace.waiting_for()
    }

    /// Returns for how long at least one call was waiting for the pace.
    pub fn paced(&self) -> Duration {
        self.pace.waited()
    }

    /// Returns the number of failures so far, by class.
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        self.error_counts.by_class()
    }
}
