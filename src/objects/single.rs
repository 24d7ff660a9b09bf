//! Deletes objects one by one, for a store without DeleteObjects. Many requests are in flight at a time;
//! every answer is read and paced like those of bulk deletes.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::AfterDeserializationInterceptorContextRef,
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

/// Failures in a row, of the requests of one call or of all batches: after too many, no further request is
/// sent before the call has paused.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failed_in_a_row: AtomicUsize,
    last: Mutex<Option<Failing>>,
}

/// The store failed 64 requests in a row.
#[derive(Debug, Clone)]
struct Failing {
    at: Instant,
    reason: String,
    throttled: bool,
}

impl Outage {
    /// Returns why a request that has waited since then should not be sent any more.
    fn since(&self, then: Instant) -> Option<Failing> {
        self.last.lock().as_ref().filter(|failing| failing.at >= then).cloned()
    }

    fn note(&self, verdict: &Verdict, throttled: bool) {
        let Verdict::Retry(reason) = verdict else {
            self.failed_in_a_row.store(0, Relaxed);
            return;
        };
        if self.failed_in_a_row.fetch_add(1, Relaxed) + 1 >= IN_FLIGHT {
            self.failed_in_a_row.store(0, Relaxed);
            *self.last.lock() =
                Some(Failing { at: Instant::now(), reason: reason.clone(), throttled });
        }
    }
}

/// The outcome of one key.
struct One {
    key: String,
    verdict: Verdict,
    throttled: bool,
    waited: Duration,
    was_sent: bool,
}

impl Objects {
    /// Deletes the keys one by one. Returns the answer that a call for all of them would give, and how
    /// long a key waited for its turn.
    pub(super) async fn delete_one_by_one(
        &self,
        keys: &[String],
        progress: &(impl Fn() + Sync),
    ) -> (Result<Answer, CallError>, Duration) {
        let started = Instant::now();
        let outage = Outage::default();
        let outcomes = stream::iter(keys.to_vec())
            .map(|key| self.delete_alone(key, started, &outage, progress))
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<_>>()
            .await;
        let longest_wait = |all: &[One]| all.iter().map(|one| one.waited).max();
        let (answered, waited) = match outcomes {
            Ok(all) => {
                let waited = longest_wait(&all).unwrap_or_default();
                let slow_down = all.iter().any(|one| one.throttled);
                let was_cut_short = all.iter().any(|one| !one.was_sent);
                let verdicts = all.into_iter().map(|one| (one.key, one.verdict)).collect();
                let answer = Answer { verdicts, unanswered: Vec::new(), slow_down, was_cut_short };
                (Ok(answer), waited)
            }
            Err(error) => (Err(error), Duration::ZERO),
        };
        self.note_in_breaker(&answered);
        (answered, waited)
    }

    /// Deletes one of several keys, whose deletes began at `started`. An error is about all of them.
    async fn delete_alone(
        &self,
        key: String,
        started: Instant,
        outage: &Outage,
        progress: &(impl Fn() + Sync),
    ) -> Result<One, CallError> {
        let waiting = Instant::now();
        let _permit = self.bulk.permit(progress).await;
        let waited = waiting.elapsed();
        // All keys of this call may fail while those of other batches are deleted.
        let failing = self.bulk.outage.since(started).or_else(|| outage.since(started));
        if let Some(Failing { reason, throttled, .. }) = failing {
            let verdict = Verdict::Retry(reason);
            return Ok(One { key, verdict, throttled, waited: Duration::ZERO, was_sent: false });
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
            // Perhaps about this key alone, which is a part of the address: a probe decides.
            Err(CallError::Rejected(refusal) | CallError::Unsupported(refusal)) => {
                (Verdict::Denied(refusal.reason), false)
            }
            Err(error) => return Err(error),
        };
        self.bulk.outage.note(&verdict, throttled);
        outage.note(&verdict, throttled);
        Ok(One { key, verdict, throttled, waited: waited + paced, was_sent: true })
    }

    /// Deletes one key with DeleteObject. Returns the answer that a call for many keys would give.
    pub(super) async fn delete_one(&self, key: &str) -> Result<Answer, CallError> {
        let request = self.client.delete_object().bucket(&self.bucket).key(key);
        let verdict = match request.customize().interceptor(EmptyAnswer).send().await {
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
            was_cut_short: false,
        })
    }
}

/// Refuses a success with a body: DeleteObject's answer is empty, so nothing else tells a store from a
/// server that says 200 to everything.
#[derive(Debug)]
struct EmptyAnswer;

impl Intercept for EmptyAnswer {
    fn name(&self) -> &'static str {
        "EmptyAnswer"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response();
        let body = answer.body().bytes().unwrap_or_default();
        match answer.status().is_success() && !body.trim_ascii().is_empty() {
            true => {
                Err("the answer to a delete has a body, so it is not that of an object store"
                    .into())
            }
            false => Ok(()),
        }
    }
}
