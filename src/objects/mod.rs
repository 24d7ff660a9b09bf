//! The bodies in S3: bulk deletion, with every answer read to the end.

mod breaker;
mod classify;
mod errors;
mod list;
mod md5;
mod pace;
mod single;
mod spelling;
mod there;

use std::{sync::Arc, time::Duration};

use aws_sdk_s3::{
    Client,
    config::{Builder, retry::RetryConfig, timeout::TimeoutConfig},
    types::{Delete, ObjectIdentifier},
};
use tokio::time::Instant;

use crate::{
    backoff::backoff,
    config::{Checksum, ConfigError, Settings},
    failpoint,
};
use classify::{Answer, CREDENTIALS_FAILED, CallError, NO_CREDENTIALS, Verdict};
pub use errors::CLASSES as ERROR_CLASSES;
pub use list::{Listed, Page, Start};
pub use spelling::is_odd;

/// S3 takes at most this many keys in one DeleteObjects.
pub const KEYS_PER_CALL: usize = 1000;
/// A key that the store neither deletes nor refuses this often is refused by its silence.
const MAX_UNANSWERED: u32 = 3;
const PROBE: &str = ".paste-cleanup-probe";

/// The bucket does not work, for reasons that are no single paste's. Nothing is lost: the rows
/// still know their keys.
#[derive(thiserror::Error, Debug, Clone)]
pub enum ObjectsError {
    #[error(
        "bucket {bucket:?} does not exist; create it, or correct S3_BUCKET or CLEANUP_S3_BUCKET"
    )]
    NoBucket { bucket: String },
    #[error(
        "S3 refuses to delete in bucket {bucket:?}: {reason}; check credentials and policy (s3:DeleteObject)"
    )]
    Denied { bucket: String, reason: String },
    #[error(
        "bucket {bucket:?} is in another region than requests are signed for: {reason}; set AWS_REGION={region}"
    )]
    WrongRegion { bucket: String, reason: String, region: String },
    #[error(
        "S3 does not take our DeleteObjects in bucket {bucket:?}: {reason}; try CLEANUP_S3_CHECKSUM=md5 (`cleanupctl doctor` tells which checksum works)"
    )]
    Unsupported { bucket: String, reason: String },
    #[error(
        "S3 refuses to list bucket {bucket:?}: {reason}; check credentials and policy (s3:ListBucket)"
    )]
    NotListed { bucket: String, reason: String },
    #[error("no AWS credentials found for bucket {bucket:?}; {CREDENTIALS_REMEDY}")]
    NoCredentials { bucket: String },
    #[error("S3 is unavailable for bucket {bucket:?}: {reason}; {}", unavailable_remedy(.reason))]
    Unavailable { bucket: String, reason: String },
}

const CREDENTIALS_REMEDY: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with \
                                  AWS_PROFILE, or give the machine a role";

fn unavailable_remedy(reason: &str) -> &'static str {
    match reason == NO_CREDENTIALS || reason.starts_with(CREDENTIALS_FAILED) {
        true => CREDENTIALS_REMEDY,
        false => "check that it runs and that AWS_ENDPOINT_URL is right",
    }
}

impl ObjectsError {
    /// What S3 said.
    pub fn reason(&self) -> &str {
        match self {
            Self::NoBucket { .. } => "there is no such bucket",
            Self::NoCredentials { .. } => NO_CREDENTIALS,
            Self::Denied { reason, .. }
            | Self::WrongRegion { reason, .. }
            | Self::Unsupported { reason, .. }
            | Self::NotListed { reason, .. }
            | Self::Unavailable { reason, .. } => reason,
        }
    }
}

/// What became of a batch's keys: all gone but these, each with the store's reason.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Refused for good.
    pub refused: Vec<(String, String)>,
    /// Neither deleted nor refused within the deadline, while the store deletes others: a damaged
    /// object, or a part of the store that is away. Nobody's fault, and no neighbour's business.
    pub stuck: Vec<(String, String)>,
}

/// The bucket.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    bucket: String,
    prefix: String,
    deadline: Duration,
    pace: Arc<pace::Pace>,
    breaker: Arc<breaker::Breaker>,
    errors: Arc<errors::Errors>,
    md5: bool,
}

impl Objects {
    /// A client by the settings and the usual AWS variables and files. Sends nothing yet.
    pub async fn new(settings: &Settings) -> Result<Self, ConfigError> {
        let bucket = settings.bucket()?.to_string();
        let shared = aws_config::from_env().load().await;
        let mut config = Builder::from(&shared)
            // Retries are ours: they know the batch's deadline and the worker's pace.
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
            config = config.region(aws_sdk_s3::config::Region::new("us-east-1"));
        }
        Ok(Self {
            client: Client::from_conf(config.build()),
            bucket,
            prefix: settings.s3.prefix.clone(),
            deadline: settings.s3.deadline,
            pace: pace::Pace::new(settings.s3.max_keys_per_second).into(),
            breaker: Arc::default(),
            errors: Arc::default(),
            md5: settings.s3.checksum == Checksum::Md5,
        })
    }

    /// The SDK's client, for the tools that upload.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same bucket, asked with this checksum.
    pub fn with_checksum(&self, checksum: Checksum) -> Self {
        Self { md5: checksum == Checksum::Md5, ..self.clone() }
    }

    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Why nothing should be claimed right now: the last call failed, for everybody.
    pub fn failing(&self) -> Option<ObjectsError> {
        self.breaker.reason().map(|reason| self.unavailable(reason))
    }

    /// What calls wait for right now before they are made, if they do.
    pub fn waiting_for(&self) -> Option<String> {
        self.pace.waiting_for()
    }

    /// How long calls have waited for their turn, by the clock on the wall.
    pub fn paced(&self) -> Duration {
        self.pace.waited()
    }

    /// How often the store said no so far, by class.
    pub fn errors(&self) -> Vec<(&'static str, u64)> {
        self.errors.by_class()
    }

    /// Does deleting work at all? Asks with a key that cannot exist, so delete-only rights suffice.
    pub async fn probe(&self) -> Result<(), ObjectsError> {
        self.probe_key(&format!("{}{PROBE}", self.prefix)).await
    }

    async fn probe_key(&self, key: &str) -> Result<(), ObjectsError> {
        let keys = [key.to_string()];
        let answer = self.call(&keys).await.map_err(|error| self.blame(error))?;
        match answer.verdicts.into_iter().next() {
            Some((_, Verdict::Gone)) => Ok(()),
            Some((_, Verdict::Denied(reason) | Verdict::Refused(reason))) => {
                Err(ObjectsError::Denied { bucket: self.bucket.clone(), reason })
            }
            Some((_, Verdict::Again(reason))) => Err(self.unavailable(reason)),
            None => Err(self.unavailable("it did not acknowledge a deletion".into())),
        }
    }

    /// Deletes all keys, retrying within the deadline what the store has no time for. Says before
    /// each call that it makes progress.
    pub async fn delete(
        &self,
        keys: &[String],
        progress: impl Fn(),
    ) -> Result<Deleted, ObjectsError> {
        let mut give_up = Instant::now() + self.deadline;
        let mut deleted = Deleted::default();
        let mut calls = single::calls(keys);
        let mut tries = 0;
        let mut unanswered_tries = 0;
        while let Some(call) = calls.pop() {
            // Waiting for one's turn is not the store's fault.
            give_up += self.pace.take(call.len()).await;
            progress();
            failpoint::reached("objects.before_call");
            let answered = self.call(&call).await;
            failpoint::reached("objects.after_call");
            let (again, reason, key_by_key) = match answered {
                Ok(answer) => {
                    if answer.slow_down {
                        self.pace.slow_down();
                    } else {
                        self.pace.recover();
                    }
                    unanswered_tries += u32::from(!answer.unanswered.is_empty());
                    let key_by_key = !answer.slow_down && answer.unanswered.is_empty();
                    let rest = self.judge(answer, unanswered_tries, &mut deleted).await?;
                    let Some((again, reason)) = rest else {
                        continue;
                    };
                    (again, reason, key_by_key)
                }
                Err(CallError::Again { reason, slow_down }) => {
                    if slow_down {
                        self.pace.slow_down();
                    }
                    (call, reason, false)
                }
                Err(CallError::Rejected(reason)) => {
                    self.probe().await?;
                    if Instant::now() >= give_up {
                        return Err(self.unavailable(reason));
                    }
                    // The store works, so it is one of these keys: find it.
                    match call.len() {
                        1 => deleted
                            .refused
                            .extend(call.into_iter().map(|key| (key, reason.clone()))),
                        many => calls.extend(call.chunks(many.div_ceil(2)).map(<[String]>::to_vec)),
                    }
                    continue;
                }
                Err(error) => return Err(self.blame(error)),
            };
            tries += 1;
            let pause = backoff(tries);
            if Instant::now() + pause >= give_up {
                if !key_by_key || self.probe().await.is_err() {
                    return Err(self.unavailable(reason));
                }
                deleted.stuck.extend(again.into_iter().map(|key| (key, reason.clone())));
                continue;
            }
            calls.push(again);
            self.pace.rest(pause).await;
        }
        Ok(deleted)
    }

    /// Sorts an answer: what is gone, what is refused for good, and what to ask for again.
    async fn judge(
        &self,
        answer: Answer,
        unanswered_tries: u32,
        deleted: &mut Deleted,
    ) -> Result<Option<(Vec<String>, String)>, ObjectsError> {
        let (mut again, mut why) = (Vec::new(), String::new());
        let (mut denied, mut any_gone) = (Vec::new(), false);
        for (key, verdict) in answer.verdicts {
            match verdict {
                Verdict::Gone => any_gone = true,
                Verdict::Refused(reason) => deleted.refused.push((key, reason)),
                Verdict::Denied(reason) => denied.push((key, reason)),
                Verdict::Again(reason) => {
                    why = reason;
                    again.push(key);
                }
            }
        }
        // Denied beside others that went is that object's own (a policy for it, say). When nothing
        // went, it may as well be the credentials: a key beside it tells.
        if let Some((key, _)) = denied.first().filter(|_| !any_gone) {
            self.probe_key(&format!("{key}{PROBE}")).await?;
        }
        deleted.refused.extend(denied);
        if !answer.unanswered.is_empty() {
            why = "the store did not acknowledge every key".into();
            if unanswered_tries >= MAX_UNANSWERED {
                self.probe().await?;
                let unanswered = answer.unanswered.into_iter();
                deleted.refused.extend(unanswered.map(|key| (key, why.clone())));
            } else {
                again.extend(answer.unanswered);
            }
        }
        Ok((!again.is_empty()).then_some((again, why)))
    }

    async fn call(&self, keys: &[String]) -> Result<Answer, CallError> {
        let called = match keys {
            [key] if !single::xml_can_say(key) => self.delete_one(key).await,
            keys => self.delete_many(keys).await,
        };
        self.breaker.note(&called);
        self.errors.note(&called);
        called
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Answer, CallError> {
        let invalid = |error: aws_sdk_s3::error::BuildError| CallError::Rejected(error.to_string());
        let objects = keys.iter().map(|key| ObjectIdentifier::builder().key(key).build());
        let objects = objects.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        let delete = Delete::builder().set_objects(Some(objects)).build().map_err(invalid)?;
        let request = self.client.delete_objects().bucket(&self.bucket).delete(delete);
        let sent = match self.md5 {
            true => request.customize().interceptor(md5::ContentMd5).send().await,
            false => request.send().await,
        };
        sent.map(|output| Answer::new(keys, output)).map_err(CallError::from)
    }

    fn blame(&self, error: CallError) -> ObjectsError {
        let bucket = self.bucket.clone();
        match error {
            CallError::NoBucket => ObjectsError::NoBucket { bucket },
            CallError::Denied(reason) | CallError::Rejected(reason) => {
                ObjectsError::Denied { bucket, reason }
            }
            CallError::WrongRegion { reason, region } => {
                let region = region.unwrap_or_else(|| "(the bucket's region)".into());
                ObjectsError::WrongRegion { bucket, reason, region }
            }
            CallError::Unsupported(reason) => ObjectsError::Unsupported { bucket, reason },
            // Nothing was sent, because there is no key to sign the request with.
            CallError::Again { reason, .. } if reason == NO_CREDENTIALS => {
                ObjectsError::NoCredentials { bucket }
            }
            CallError::Again { reason, .. } => ObjectsError::Unavailable { bucket, reason },
        }
    }

    fn unavailable(&self, reason: String) -> ObjectsError {
        ObjectsError::Unavailable { bucket: self.bucket.clone(), reason }
    }
}
