//! Does the store delete in this bucket at all? Deletes of keys that cannot exist tell: the right to
//! delete is enough for them.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    Objects, ObjectsError, PROBE,
    classify::{Answer, CallError, Verdict},
    error::Action,
};
use crate::problem::Problem;

impl Objects {
    /// Checks that the store deletes, and finds out whether it does so in bulk.
    pub async fn probe(&self) -> Result<(), ObjectsError> {
        let bulk = !self.bulk.is_off();
        let answered = self.call(&[self.probe_key()]).await;
        match answered {
            Err(error @ (CallError::Unsupported(_) | CallError::Rejected(_))) if bulk => {
                let off = Box::pin(self.turn_bulk_off(error)).await;
                off.map_err(|error| self.error(error, Action::Delete))
            }
            answered => self.judge_probe(answered),
        }
    }

    /// Checks before anything is claimed that the store deletes in this bucket. Returns a warning if the
    /// store would also delete in a bucket that does not exist, and this one may be such.
    pub async fn check(&self) -> Result<Option<Problem>, ObjectsError> {
        self.probe().await?;
        // AWS reports a missing bucket in every answer.
        if !self.has_endpoint || self.says_which_bucket_is_missing().await {
            return Ok(None);
        }
        let (s3, bucket) = (&self.client, &self.bucket);
        match s3.head_bucket().bucket(bucket).send().await {
            Ok(_) => Ok(None),
            Err(error) if error.as_service_error().is_some_and(|error| error.is_not_found()) => {
                Err(ObjectsError::NoBucket { bucket: bucket.clone() })
            }
            Err(error) => {
                let reason = self.error(CallError::from(error), Action::List);
                let problem = format!(
                    "could not check that bucket {bucket:?} exists: HEAD failed ({}), and a delete proves \
                     nothing in this store",
                    reason.reason()
                );
                Ok(Some(Problem::new(problem, "check the bucket's name, or allow s3:ListBucket")))
            }
        }
    }

    /// Whether the store refuses to delete in a bucket that does not exist. Without an answer, it is not
    /// known.
    async fn says_which_bucket_is_missing(&self) -> bool {
        let bucket = format!("paste-cleanup-probe-{}", Uuid::new_v4().simple());
        // Its refusal is no failure of the store.
        let missing = Self { bucket, error_counts: Arc::default(), ..self.clone() };
        match missing.send(&[self.probe_key()]).await {
            Ok(answer) => matches!(
                answer.verdicts.first(),
                Some((_, Verdict::Denied(_) | Verdict::Refused(_)))
            ),
            Err(CallError::Retry { .. }) => false,
            Err(_) => true,
        }
    }

    /// Checks that the store deletes a key beside this one.
    pub(super) async fn probe_beside(&self, key: &str) -> Result<(), ObjectsError> {
        let answered = self.call(&[format!("{key}{PROBE}")]).await;
        self.judge_probe(answered)
    }

    pub(super) fn probe_key(&self) -> String {
        format!("{}{PROBE}", self.prefix)
    }

    /// Returns the error of a probe that was not deleted.
    pub(super) fn judge_probe(
        &self,
        answered: Result<Answer, CallError>,
    ) -> Result<(), ObjectsError> {
        let answer = answered.map_err(|error| self.error(error, Action::Delete))?;
        match answer.verdicts.into_iter().next() {
            Some((_, Verdict::Gone)) => Ok(()),
            Some((_, Verdict::Denied(reason) | Verdict::Refused(reason))) => {
                Err(self.error(CallError::Denied(reason), Action::Delete))
            }
            Some((_, Verdict::Retry(reason))) => Err(self.unavailable(reason)),
            None => Err(self.unavailable("the store did not acknowledge a delete")),
        }
    }
}
