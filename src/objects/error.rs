//! The errors of the bucket as a whole, each with what to do about it.

use super::{
    Objects,
    classify::{CallError, is_without_credentials},
};

/// The bucket cannot be used, for a reason that is not a single paste's. Nothing is lost: the keys
/// are still in the tables.
#[derive(thiserror::Error, Debug, Clone)]
pub enum ObjectsError {
    #[error(
        "bucket {bucket:?} does not exist; create it, or correct S3_BUCKET or CLEANUP_S3_BUCKET"
    )]
    NoBucket { bucket: String },
    #[error(
        "{reason}, for bucket {bucket:?}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with AWS_PROFILE, or give the machine a role"
    )]
    NoCredentials { bucket: String, reason: String },
    #[error(
        "S3 refuses to delete in bucket {bucket:?}: {reason}; check credentials and policy (s3:DeleteObject)"
    )]
    Denied { bucket: String, reason: String },
    #[error(
        "bucket {bucket:?} is in another region than the one that requests are signed for: {reason}; set AWS_REGION={region}"
    )]
    WrongRegion { bucket: String, reason: String, region: String },
    #[error(
        "S3 does not accept DeleteObjects in bucket {bucket:?}: {reason}; try CLEANUP_S3_CHECKSUM=md5 (`cleanupctl doctor` shows which checksum works)"
    )]
    Unsupported { bucket: String, reason: String },
    #[error(
        "S3 refuses to list bucket {bucket:?}: {reason}; check credentials and policy (s3:ListBucket)"
    )]
    NotListed { bucket: String, reason: String },
    #[error(
        "S3 is unavailable for bucket {bucket:?}: {reason}; check that it is running and that AWS_ENDPOINT_URL is correct"
    )]
    Unavailable { bucket: String, reason: String },
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
            | Self::NotListed { reason, .. }
            | Self::Unavailable { reason, .. } => reason,
        }
    }
}

impl Objects {
    /// Turns a failed delete into an error of the bucket.
    pub(super) fn error(&self, error: CallError) -> ObjectsError {
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
            CallError::Retry { reason, .. } => self.unavailable(reason),
        }
    }

    pub(super) fn unavailable(&self, reason: impl Into<String>) -> ObjectsError {
        let (bucket, reason) = (self.bucket.clone(), reason.into());
        match is_without_credentials(&reason) {
            true => ObjectsError::NoCredentials { bucket, reason },
            false => ObjectsError::Unavailable { bucket, reason },
        }
    }
}
