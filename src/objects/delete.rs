//! Deletes objects in bulk and reads the answer for every key.
//!
//! A key ends in one of four ways: deleted (or already gone), refused, stuck, or part of an outage,
//! which is an error for the whole batch. An outage must never look like a refused key, because a
//! refused key costs its paste an attempt; a probe (a delete of a key that cannot exist) tells the
//! two apart.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Objects, ObjectsError, PROBE,
    classify::{Answer, CallError, Later, Verdict},
    error::Action,
    request::split,
};
use crate::{backoff::backoff, failpoint};

/// A key that this many answers do not mention counts as refused.
const MAX_UNANSWERED: u32 = 3;
const UNACKNOWLEDGED: &str = "the store did not acknowledge every key";

/// The keys that were not deleted, each with the store's reason. All others are gone.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Refused permanently.
    pub refused: Vec<(String, String)>,
    /// Neither deleted nor refused within the deadline, while the store deletes other keys: a
    /// damaged object, or a part of the store that is down. Costs no paste an attempt, and does not
    /// hold up the other keys.
    pub stuck: Vec<(String, String)>,
}

/// The state of one [`Objects::delete`].
struct Deletion {
    /// The keys of each call that is still to be made.
    calls: Vec<Vec<String>>,
    give_up: Instant,
    retries: u32,
    /// Answers so far that left out some of their keys.
    incomplete_answers: u32,
    deleted: Deleted,
}

/// Keys to send again.
struct Retry {
    keys: Vec<String>,
    why: Later,
    reason: String,
    /// The store answered for every key and failed only these, so the cause may be the keys and not
    /// an outage.
    key_by_key: bool,
}

impl Objects {
    /// Deletes all keys. Keys that the store cannot process yet are sent again until the deadline.
    /// Calls `progress` before each request.
    pub async fn delete(
        &self,
        keys: &[String],
        progress: impl Fn(),
    ) -> Result<Deleted, ObjectsError> {
        let mut deletion = Deletion::new(keys, self.deadline);
        while let Some(keys) = deletion.calls.pop() {
            // Our own pace is no fault of the store: its deadline moves by the wait.
            deletion.give_up += self.pace.acquire(keys.len()).await;
            progress();
            failpoint::reached("objects.before_call");
            let answered = self.call(&keys).await;
            failpoint::reached("objects.after_call");
            if let Some(retry) = self.read_answer(&mut deletion, keys, answered).await? {
                self.retry(&mut deletion, retry).await?;
            }
        }
        Ok(deletion.deleted)
    }

    /// Records what became of the keys of one call. Returns those to send again.
    async fn read_answer(
        &self,
        deletion: &mut Deletion,
        keys: Vec<String>,
        answered: Result<Answer, CallError>,
    ) -> Result<Option<Retry>, ObjectsError> {
        match answered {
            Ok(answer) => {
                match answer.slow_down {
                    true => self.pace.slow_down(),
                    false => self.pace.recover(),
                }
                self.read_verdicts(deletion, answer).await
            }
            Err(CallError::Retry { why, reason }) => {
                if why == Later::Throttled {
                    self.pace.slow_down();
                }
                Ok(Some(Retry { keys, why, reason, key_by_key: false }))
            }
            Err(CallError::Rejected(reason)) => {
                self.bisect(deletion, keys, reason).await?;
                Ok(None)
            }
            Err(error) => Err(self.error(error, Action::Delete)),
        }
    }

    /// Sorts the keys of an answer into gone, refused, and to send again.
    async fn read_verdicts(
        &self,
        deletion: &mut Deletion,
        answer: Answer,
    ) -> Result<Option<Retry>, ObjectsError> {
        deletion.incomplete_answers += u32::from(!answer.unanswered.is_empty());
        let key_by_key = !answer.slow_down && answer.unanswered.is_empty();
        let deleted = &mut deletion.deleted;
        let (mut keys, mut reason) = (Vec::new(), String::new());
        let (mut denied, mut any_gone) = (Vec::new(), false);
        for (key, verdict) in answer.verdicts {
            match verdict {
                Verdict::Gone => any_gone = true,
                Verdict::Refused(its) => deleted.refused.push((key, its)),
                Verdict::Denied(its) => denied.push((key, its)),
                Verdict::Retry(its) => {
                    reason = its;
                    keys.push(key);
                }
            }
        }
        // A denial beside keys that were deleted is about that object (a policy for it, say). If no
        // key was deleted it may be about the credentials: a key beside it decides.
        if let Some((key, _)) = denied.first().filter(|_| !any_gone) {
            self.probe_key(&format!("{key}{PROBE}")).await?;
        }
        deleted.refused.extend(denied);
        if !answer.unanswered.is_empty() {
            reason = UNACKNOWLEDGED.into();
            if deletion.incomplete_answers >= MAX_UNANSWERED {
                self.probe().await?;
                let refused = answer.unanswered.into_iter().map(|key| (key, reason.clone()));
                deleted.refused.extend(refused);
            } else {
                keys.extend(answer.unanswered);
            }
        }
        let why = Later::Unavailable;
        Ok((!keys.is_empty()).then_some(Retry { keys, why, reason, key_by_key }))
    }

    /// Bisects a call that the store rejected as a whole until the key at fault is alone.
    async fn bisect(
        &self,
        deletion: &mut Deletion,
        keys: Vec<String>,
        reason: String,
    ) -> Result<(), ObjectsError> {
        // If the store deletes other keys, the rejection is about one of these.
        self.probe().await?;
        if Instant::now() >= deletion.give_up {
            return Err(self.unavailable(reason));
        }
        match keys.len() {
            1 => deletion.deleted.refused.extend(keys.into_iter().map(|key| (key, reason.clone()))),
            many => {
                let halves = keys.chunks(many.div_ceil(2)).map(<[String]>::to_vec);
                deletion.calls.extend(halves);
            }
        }
        Ok(())
    }

    /// Queues the keys again after a backoff. After the deadline they are stuck if the store still
    /// deletes other keys; if not, this is an outage.
    async fn retry(&self, deletion: &mut Deletion, retry: Retry) -> Result<(), ObjectsError> {
        let Retry { keys, why, reason, key_by_key } = retry;
        deletion.retries += 1;
        let pause = backoff(deletion.retries);
        if Instant::now() + pause < deletion.give_up {
            deletion.calls.push(keys);
            self.pace.pause(pause).await;
            return Ok(());
        }
        if !key_by_key || self.probe().await.is_err() {
            return Err(self.failed_later(why, reason));
        }
        deletion.deleted.stuck.extend(keys.into_iter().map(|key| (key, reason.clone())));
        Ok(())
    }

    /// Checks that the store deletes at all, with a key that cannot exist: the right to delete is
    /// enough for it.
    pub async fn probe(&self) -> Result<(), ObjectsError> {
        self.probe_key(&format!("{}{PROBE}", self.prefix)).await
    }

    async fn probe_key(&self, key: &str) -> Result<(), ObjectsError> {
        let keys = [key.to_string()];
        let answer = self.call(&keys).await;
        let answer = answer.map_err(|error| self.error(error, Action::Delete))?;
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

impl Deletion {
    fn new(keys: &[String], deadline: Duration) -> Self {
        Self {
            calls: split(keys),
            give_up: Instant::now() + deadline,
            retries: 0,
            incomplete_answers: 0,
            deleted: Deleted::default(),
        }
    }
}
