//! Deletes objects one by one, for a store without DeleteObjects. Many requests are in flight at a time;
//! every answer is read and paced like those of bulk deletes.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::BeforeDeserializationInterceptorContextRef,
    },
    error::{BoxError, ProvideErrorMetadata},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use super::{
    Objects,
    classify::{Answer, CallError, Later, Verdict},
};
use crate::mutex::Mutex;

/// Requests in flight at a time, of all batches of a worker together.
pub(super) const IN_FLIGHT: usize = 64;

/// What the requests of one call learn from each other.
#[derive(Default)]
struct Outage {
    failed_in_a_row: AtomicUsize,
    last: Mutex<String>,
}

impl Outage {
    /// The store failed so many requests in a row that no further one should be sent now.
    fn reason(&self) -> Option<String> {
        (self.failed_in_a_row.load(Relaxed) >= IN_FLIGHT).then(|| self.last.lock().clone())
    }

    fn note(&self, verdict: &Verdict) {
        match verdict {
            Verdict::Retry(reason) => {
                self.last.lock().clone_from(reason);
                self.failed_in_a_row.fetch_add(1, Relaxed);
            }
            _ => self.failed_in_a_row.store(0, Relaxed),
        }
    }
}

/// The outcome of one key.
struct One {
    key: String,
    verdict: Verdict,
    throttled: bool,
    waited: Duration,
}

impl Objects {
    /// Deletes the keys one by one. Returns the answer that a call for all of them would give, and how
    /// much of the time was no fault of the store: all of it, if it deleted anything.
    pub(super) async fn delete_one_by_one(
        &self,
        keys: &[String],
        progress: &(impl Fn() + Sync),
    ) -> (Result<Answer, CallError>, Duration) {
        let started = Instant::now();
        let outage = Outage::default();
        let outcomes = stream::iter(keys.to_vec())
            .map(|key| self.delete_alone(key, &outage, progress))
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<_>>()
            .await;
        let longest_wait = |all: &[One]| all.iter().map(|one| one.waited).max();
        let (answered, waited) = match outcomes {
            Ok(all) => {
                let waited = longest_wait(&all).unwrap_or_default();
                let slow_down = all.iter().any(|one| one.throttled);
                let verdicts = all.into_iter().map(|one| (one.key, one.verdict)).collect();
                (Ok(Answer { verdicts, unanswered: Vec::new(), slow_down }), waited)
            }
            Err(error) => (Err(error), Duration::ZERO),
        };
        self.note_in_breaker(&answered);
        let worked = answered.as_ref().is_ok_and(Answer::any_gone);
        (answered, if worked { started.elapsed() } else { waited })
    }

    /// Deletes one of several keys. An error is about all of them.
    async fn delete_alone(
        &self,
        key: String,
        outage: &Outage,
        progress: &(impl Fn() + Sync),
    ) -> Result<One, CallError> {
        let waiting = Instant::now();
        let _permit = self.bulk.permit().await;
        let waited = waiting.elapsed();
        if let Some(reason) = outage.reason() {
            return Ok(One { key, verdict: Verdict::Retry(reason), throttled: false, waited });
        }
        let (answered, paced) = self.send_in_pace(std::slice::from_ref(&key), progress).await;
        let (verdict, throttled) = match answered {
            Ok(answer) => match answer.verdicts.into_iter().next() {
                Some((_, verdict)) => (verdict, false),
                None => (Verdict::Retry("no answer".into()), false),
            },
            Err(CallError::Retry { why, reason }) if why != Later::NoCredentials => {
                (Verdict::Retry(reason), why == Later::Throttled)
            }
            // Perhaps about this key alone: a key beside it decides.
            Err(CallError::Rejected(refusal)) => (Verdict::Denied(refusal.reason), false),
            Err(error) => return Err(error),
        };
        outage.note(&verdict);
        Ok(One { key, verdict, throttled, waited: waited + paced })
    }

    /// Deletes one key with DeleteObject. Returns the answer that a call for many keys would give.
    pub(super) async fn delete_one(&self, key: &str) -> Result<Answer, CallError> {
        let request = self.client.delete_object().bucket(&self.bucket).key(key);
        let verdict = match request.customize().interceptor(NoWebPage).send().await {
            Ok(_) => Verdict::Gone,
            Err(error) if error.code() == Some("NoSuchKey") => Verdict::Gone,
            Err(error) => match CallError::from(error) {
                // Perhaps about this object alone: the caller probes a key beside it.
                CallError::Denied(reason) => Verdict::Denied(reason),
                error => return Err(error),
            },
        };
        Ok(Answer {
            verdicts: vec![(key.into(), verdict)],
            unanswered: Vec::new(),
            slow_down: false,
        })
    }
}

/// Refuses a web page as the answer: DeleteObject's own is empty, so nothing else tells a store from a
/// proxy's page of status 200.
#[derive(Debug)]
struct NoWebPage;

impl Intercept for NoWebPage {
    fn name(&self) -> &'static str {
        "NoWebPage"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response();
        let content = answer.headers().get("content-type").unwrap_or_default();
        match answer.status().is_success() && content.starts_with("text/html") {
            true => Err("the answer is a web page, not that of an object store".into()),
            false => Ok(()),
        }
    }
}
