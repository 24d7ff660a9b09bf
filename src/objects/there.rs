//! Is an object there, and do deleted ones stay as versions? Asked by people; workers never ask.

use aws_sdk_s3::types::BucketVersioningStatus;

use super::{Objects, classify::CallError, single};

impl Objects {
    /// Whether the bucket keeps versions, or why that cannot be seen.
    pub(crate) async fn versioning(&self) -> Result<Option<BucketVersioningStatus>, String> {
        let asked = self.client.get_bucket_versioning().bucket(&self.bucket).send().await;
        let answer = asked.map_err(|error| unseen(error.into(), "s3:GetBucketVersioning"))?;
        Ok(answer.status)
    }

    /// Whether the bucket has this key, or why that cannot be seen. Listing comes first: it is
    /// what the audit's policy allows. "No" is asked for again by the key itself, since a list may
    /// spell a key in its own way.
    pub async fn is_there(&self, key: &str) -> Result<bool, String> {
        let listable = single::xml_can_say(key) && !key.contains('\r');
        if listable && self.lists(key).await? {
            return Ok(true);
        }
        match self.has(key).await {
            // May not read, but may list: then the list has told.
            Err(CallError::Denied(_)) if listable => Ok(false),
            has => has.map_err(|error| unseen(error, "s3:GetObject")),
        }
    }

    /// Whether the bucket has this key, by the key itself. Unlike a list this cannot lag behind, and
    /// no key is spelled in another way.
    pub(crate) async fn confirms(&self, key: &str) -> bool {
        self.has(key).await.unwrap_or(false)
    }

    async fn has(&self, key: &str) -> Result<bool, CallError> {
        match self.client.head_object().bucket(&self.bucket).key(key).send().await {
            Ok(_) => Ok(true),
            Err(error) if error.as_service_error().is_some_and(|said| said.is_not_found()) => {
                Ok(false)
            }
            Err(error) => Err(CallError::from(error)),
        }
    }

    async fn lists(&self, key: &str) -> Result<bool, String> {
        let list = self.client.list_objects_v2().bucket(&self.bucket).prefix(key).max_keys(2);
        let listed = list.send().await.map_err(|error| unseen(error.into(), "s3:ListBucket"))?;
        Ok(listed.contents().iter().any(|object| object.key() == Some(key)))
    }
}

/// Why something cannot be seen, and the right that would let it be.
fn unseen(error: CallError, right: &str) -> String {
    match error {
        CallError::NoBucket => "the bucket does not exist".into(),
        CallError::Denied(reason) => format!("{reason} ({right} allows it)"),
        CallError::Again { reason, .. } => format!("S3 is unavailable: {reason}"),
        CallError::WrongRegion { reason, .. }
        | CallError::Unsupported(reason)
        | CallError::Rejected(reason) => reason,
    }
}
