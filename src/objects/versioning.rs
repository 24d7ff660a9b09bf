//! Does the bucket keep versions of deleted objects? A check of the doctor's.

use aws_sdk_s3::types::BucketVersioningStatus;

use super::{Action, Objects, ObjectsError};

impl Objects {
    /// Reads the versioning status of the bucket.
    pub(crate) async fn versioning(&self) -> Result<Option<BucketVersioningStatus>, ObjectsError> {
        let answer = self.client.get_bucket_versioning().bucket(&self.bucket).send().await;
        let answer = answer.map_err(|error| self.error(error.into(), Action::ReadVersioning))?;
        Ok(answer.status)
    }
}
