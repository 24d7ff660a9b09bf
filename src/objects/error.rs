//! The errors of the bucket as a whole, each with what to do about it.

use std::fmt;

use super::{
    Objects,
    classify::{CallError, Later, Refusal},
};
use crate::problem::Problem;

/// What S3 was asked to do. Each action needs a right of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// DELETE of one object or many; also of a probe.
    Delete,
    /// ListObjectsV2, which only audit and doctor need.
    List,
    /// HEAD of an object.
    Read,
    /// GetBucketVersioning, which only `cleanupctl doctor` needs.
    ReadVersioning,
}

impl Action {
    fn words(self) -> &'static str {
        match self {
            Self::Delete => "delete in",
            Self::List => "list",
            Self::Read => "read an object of",
            Self::ReadVersioning => "read the versioning of",
        }
    }

    fn right(self) -> &'static str {
        match self {
            Self::Delete => "s3:DeleteObject",
            Self::List => "s3:ListBucket",
            Self::Read => "s3:GetObject",
            Self::ReadVersioning => "s3:GetBucketVersioning",
        }
    }
}

/// The bucket cannot be used, for a reason that is not a single paste's. Nothing is lost: the keys
/// are still in the tables.
#[derive(Debug, Clone)]
pub enum ObjectsError {
    /// The store has no bucket of this name.
    NoBucket {
        /// The bucket that the settings name.
        bucket: String,
    },
    /// Nothing was sent, because there were no credentials to sign it with.
    NoCredentials {
        /// The bucket that the settings name.
        bucket: String,
        /// Why: none were found, or a source of credentials failed.
        reason: String,
    },
    /// S3 refuses the action: invalid credentials, or a missing right.
    Denied {
        /// The bucket that the settings name.
        bucket: String,
        /// What S3 answered.
        reason: String,
        /// The action, and so the right that may be missing.
        action: Action,
    },
    /// The bucket is in another region than the one that requests are signed for.
    WrongRegion {
        /// The bucket that the settings name.
        bucket: String,
        /// What S3 answered.
        reason: String,
        /// The region that the store expects, if its answer names one.
        region: Option<String>,
    },
    /// The store does not know the action; for a delete: not DeleteObjects, or not this checksum.
    Unsupported {
        /// The bucket that the settings name.
        bucket: String,
        /// What S3 answered.
        reason: String,
        /// The action that the store does not know.
        action: Action,
    },
    /// The store finds a mistake in the request itself.
    Rejected {
        /// The bucket that the settings name.
        bucket: String,
        /// What S3 answered.
        reason: String,
        /// What was requested.
        action: Action,
    },
    /// S3 does not answer, throttles, or fails for every key: an outage.
    Unavailable {
        /// The bucket that the settings name.
        bucket: String,
        /// The last answer of S3, or the cause if it did not answer.
        reason: String,
    },
}

impl ObjectsError {
    /// Returns the store's own words.
    pub fn reason(&self) -> &str {
        match self {
            Self::NoBucket { .. } => "the bucket does not exist",
            Self::NoCredentials { reason, .. }
            | Self::Denied { reason, .. }
            | Self::WrongRegion { reason, .. }
            | Self::Unsupported { reason, .. }
            | Self::Rejected { reason, .. }
            | Self::Unavailable { reason, .. } => reason,
        }
    }

    fn problem(&self) -> String {
        match self {
            Self::NoBucket { bucket } => format!("bucket {bucket:?} does not exist"),
            Self::NoCredentials { bucket, reason } => format!("{reason}, for bucket {bucket:?}"),
            Self::Denied { bucket, reason, action } => {
                format!("S3 refuses to {} bucket {bucket:?}: {reason}", action.words())
            }
            Self::WrongRegion { bucket, reason, .. } => format!(
                "bucket {bucket:?} is in another region than the one that requests are signed for: \
                 {reason}"
            ),
            Self::Unsupported { bucket, reason, action: Action::Delete } => {
                format!("S3 does not accept DeleteObjects in bucket {bucket:?}: {reason}")
            }
            Self::Unsupported { bucket, reason, action } => {
                format!("S3 does not support to {} bucket {bucket:?}: {reason}", action.words())
            }
            Self::Rejected { bucket, reason, action } => {
                format!("S3 rejects the request to {} bucket {bucket:?}: {reason}", action.words())
            }
            Self::Unavailable { bucket, reason } => {
                format!("S3 is unavailable for bucket {bucket:?}: {reason}")
            }
        }
    }

    fn remedy(&self) -> String {
        match self {
            Self::NoBucket { .. } => "create it, or correct S3_BUCKET or CLEANUP_S3_BUCKET".into(),
            Self::NoCredentials { .. } => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a \
                                           profile with AWS_PROFILE, or give the machine a role"
                    .into()
            }
            Self::Denied { action, .. } => {
                format!("check credentials and policy ({})", action.right())
            }
            Self::WrongRegion { region, .. } => {
                format!("set AWS_REGION={}", region.as_deref().unwrap_or("(the bucket's region)"))
            }
            Self::Unsupported { action: Action::Delete, .. } => {
                "try CLEANUP_S3_CHECKSUM=md5 (`cleanupctl doctor` checks both checksums), or \
                 CLEANUP_S3_BULK_DELETE=auto if it is \"always\""
                    .into()
            }
            Self::Unsupported { .. } | Self::Rejected { .. } => {
                "check AWS_ENDPOINT_URL and s3.path_style; ops/COMPATIBILITY.md lists the stores"
                    .into()
            }
            Self::Unavailable { .. } => S3_REMEDY.into(),
        }
    }
}

/// What to do when S3 does not answer.
pub const S3_REMEDY: &str = "check that it is running and that AWS_ENDPOINT_URL is correct";

impl fmt::Display for ObjectsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Problem::from(self).fmt(f)
    }
}

impl std::error::Error for ObjectsError {}

impl From<&ObjectsError> for Problem {
    fn from(error: &ObjectsError) -> Self {
        Self::new(error.problem(), error.remedy())
    }
}

impl Objects {
    /// Turns a failed call into an error of the bucket.
    pub(super) fn error(&self, error: CallError, action: Action) -> ObjectsError {
        let bucket = self.bucket.clone();
        match error {
            CallError::NoBucket => ObjectsError::NoBucket { bucket },
            CallError::Denied(reason) => ObjectsError::Denied { bucket, reason, action },
            CallError::Rejected(Refusal { reason, .. }) => {
                ObjectsError::Rejected { bucket, reason, action }
            }
            CallError::WrongRegion { reason, region } => {
                ObjectsError::WrongRegion { bucket, reason, region }
            }
            CallError::Unsupported(Refusal { reason, .. }) => {
                ObjectsError::Unsupported { bucket, reason, action }
            }
            CallError::Retry { why, reason } => self.failed_later(why, reason),
        }
    }

    /// The error of a call that was retried until the deadline.
    pub(super) fn failed_later(&self, why: Later, reason: String) -> ObjectsError {
        match why {
            Later::NoCredentials => {
                ObjectsError::NoCredentials { bucket: self.bucket.clone(), reason }
            }
            Later::Throttled | Later::Unavailable => self.unavailable(reason),
        }
    }

    pub(super) fn unavailable(&self, reason: impl Into<String>) -> ObjectsError {
        ObjectsError::Unavailable { bucket: self.bucket.clone(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_delete_that_is_not_supported_may_need_another_checksum() {
        let unsupported = |action| {
            let (bucket, reason) = ("b".to_string(), "S3 501 NotImplemented".to_string());
            ObjectsError::Unsupported { bucket, reason, action }.to_string()
        };
        assert!(unsupported(Action::Delete).contains("CLEANUP_S3_CHECKSUM=md5"));
        let versions = unsupported(Action::ReadVersioning);
        assert!(
            !versions.contains("DeleteObjects") && !versions.contains("CHECKSUM"),
            "{versions}"
        );
    }
}
