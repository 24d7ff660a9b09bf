//! Does the bucket keep versions of deleted objects? A check of the doctor's.

use aws_sdk_s3::types::BucketVersioningStatus;

use super::{Objects, classify::CallError};

impl Objects {
    /// Reads the versioning status of the bucket. Returns the reason if that is not possible.
    pub(crate) async fn versioning(&self) -> Result<Option<BucketVersioningStatus>, String> {
        let answer = self.client.get_bucket_versioning().bucket(&self.bucket).send().await;
        let answer =
            answer.map_err(|error| CallError::from(error).explain("s3:GetBucketVersioning"))?;
        Ok(answer.status)
    }
}
