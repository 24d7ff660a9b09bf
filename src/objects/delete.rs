//! Deletes objects and reads the answer for every key.
//!
//! A key ends in one of four ways: deleted (or already gone), refused, stuck, or part of an outage,
//! which is an error for the whole batch. An outage must never look like a refused key, because a
//! refused key costs its paste an attempt; a probe (a delete of a key that cannot exist) tells the
//! two apart.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    Objects, ObjectsError,
    classify::{Answer, CallError, Later, Verdict},
    error::Action,
    request::split,
};
use crate::backoff::backoff;

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
    /// The deadline; it moves while the store deletes something.
    give_up: Instant,
    deadline: Duration,
    retries: u32,
    /// Answers in a row that left out some of their keys, and deleted none.
    incomplete_answers: u32,
    /// Keys that were denied when they were deleted one by one, before a probe succeeded.
    denied_before: HashSet<String>,
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
    /// Deletes all keys. Keys that the store cannot process yet are sent again until it has deleted
    /// nothing for as long as the deadline. Calls `progress` before each request.
    pub async fn delete(
        &self,
        keys: &[String],
        progress: impl Fn() + Sync,
    ) -> Result<Deleted, ObjectsError> {
        let mut deletion = Deletion::new(keys, self.deadline);
        while let Some(mut keys) = deletion.calls.pop() {
            deletion.calls.extend(self.bulk.split_off(&mut keys));
            let in_bulk = !self.bulk.is_off();
            let (answered, waited) = match in_bulk {
                true => self.delete_in_bulk(&keys, &progress).await,
                false => Box::pin(self.delete_one_by_one(&keys, &progress)).await,
            };
            // Our own pace is no fault of the store: its deadline moves by the wait.
            deletion.give_up += waited;
            let retry = match answered {
                Ok(answer) => self.read_verdicts(&mut deletion, answer, in_bulk).await?,
                Err(CallError::Retry { why, reason }) => {
                    Some(Retry { keys, why, reason, key_by_key: false })
                }
                Err(error) if in_bulk => {
                    self.send_in_another_way(&mut deletion, keys, error, &progress).await?;
                    None
                }
                Err(error) => return Err(self.error(error, Action::Delete)),
            };
            if let Some(retry) = retry {
                self.retry(&mut deletion, retry).await?;
            }
        }
        Ok(deletion.deleted)
    }

    async fn delete_in_bulk(
        &self,
        keys: &[String],
        progress: &impl Fn(),
    ) -> (Result<Answer, CallError>, Duration) {
        let (answered, waited) = self.send_in_pace(keys, progress).await;
        if answered.is_ok() {
            self.bulk.accepted(keys.len());
        }
        self.note_in_breaker(&answered);
        (answered, waited)
    }

    /// Sorts the keys of an answer into gone, refused, and to send again.
    async fn read_verdicts(
        &self,
        deletion: &mut Deletion,
        answer: Answer,
        in_bulk: bool,
    ) -> Result<Option<Retry>, ObjectsError> {
        match answer.any_gone() {
            true => deletion.made_progress(),
            false => deletion.incomplete_answers += u32::from(answer.verdicts.is_empty()),
        }
        let key_by_key = !answer.slow_down && answer.unanswered.is_empty() && !answer.was_cut_short;
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
        // In one answer, a denial beside keys that were deleted is about that object (a policy for it,
        // say). If no key was deleted it may be about the credentials: a key beside it decides.
        match denied.first() {
            // One by one, the others were deleted some time before: rights may have been taken away since.
            Some((key, _)) if !in_bulk && (any_gone || deletion.denied_before.contains(key)) => {
                self.probe().await?;
            }
            Some((key, _)) if !any_gone => self.probe_beside(key).await?,
            _ => {}
        }
        if !in_bulk {
            // Were they denied because of that? What is denied after the probe is about its object.
            let before = &mut deletion.denied_before;
            let first_time = denied.extract_if(.., |(key, _)| before.insert(key.clone()));
            let again: Vec<String> = first_time.map(|(key, _)| key).collect();
            deletion.calls.extend((!again.is_empty()).then_some(again));
        }
        deleted.refused.extend(denied);
        if deletion.incomplete_answers >= MAX_UNANSWERED && !answer.unanswered.is_empty() {
            self.probe().await?;
            let refuse = |key| (key, UNACKNOWLEDGED.to_string());
            deleted.refused.extend(answer.unanswered.into_iter().map(refuse));
        } else if keys.is_empty() {
            (keys, reason) = (answer.unanswered, UNACKNOWLEDGED.into());
        } else if !answer.unanswered.is_empty() {
            // In a call of their own: they may come after too many keys that fail.
            deletion.calls.push(answer.unanswered);
        }
        let why = Later::Unavailable;
        Ok((!keys.is_empty()).then_some(Retry { keys, why, reason, key_by_key }))
    }

    /// Queues the keys of a call that the store rejected as a whole: one by one or in smaller calls if
    /// it does not take such calls, else bisected until the key at fault is alone.
    async fn send_in_another_way(
        &self,
        deletion: &mut Deletion,
        keys: Vec<String>,
        error: CallError,
        progress: &impl Fn(),
    ) -> Result<(), ObjectsError> {
        let (reason, is_unsupported) = match &error {
            CallError::Rejected(refusal) => (refusal.reason.clone(), false),
            CallError::Unsupported(refusal) => (refusal.reason.clone(), true),
            _ => return Err(self.error(error, Action::Delete)),
        };
        let (in_another_way, waited) =
            Box::pin(self.had_too_many_keys(keys.len(), progress)).await?;
        deletion.give_up += waited;
        if Instant::now() >= deletion.give_up {
            return Err(self.unavailable(reason));
        }
        match keys.len() {
            _ if in_another_way => deletion.calls.push(keys),
            _ if is_unsupported => return Err(self.error(error, Action::Delete)),
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
}

impl Deletion {
    fn new(keys: &[String], deadline: Duration) -> Self {
        Self {
            calls: split(keys),
            give_up: Instant::now() + deadline,
            deadline,
            retries: 0,
            incomplete_answers: 0,
            denied_before: HashSet::new(),
            deleted: Deleted::default(),
        }
    }

    /// The store deletes, if only some keys at a time: each is deleted once, so this ends.
    fn made_progress(&mut self) {
        self.give_up = Instant::now() + self.deadline;
        (self.retries, self.incomplete_answers) = (0, 0);
    }
}
