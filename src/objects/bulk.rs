//! Does the store have DeleteObjects, and how many keys does it take in a request? A process learns both
//! from the store's answers.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tracing::info;

use super::{
    KEYS_PER_CALL, Objects, ObjectsError, PROBE,
    classify::{CallError, Refusal},
    single::{IN_FLIGHT, Outage},
};
use crate::{
    config::{BulkDelete, Checksum},
    mutex::Mutex,
};

const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How objects are deleted by this process.
#[derive(Debug)]
pub(super) struct Bulk {
    setting: BulkDelete,
    /// Why objects are deleted one by one, if they are.
    off: Mutex<Option<String>>,
    keys_per_call: AtomicUsize,
    /// The most keys that the store has accepted in a call.
    accepted: AtomicUsize,
    singles: Semaphore,
    /// Of the single deletes of all batches.
    pub(super) outage: Outage,
}

impl Bulk {
    pub(super) fn new(setting: BulkDelete) -> Self {
        let off = (setting == BulkDelete::Never).then(|| "s3.bulk_delete is \"never\"".to_string());
        Self {
            setting,
            off: Mutex::new(off),
            keys_per_call: AtomicUsize::new(KEYS_PER_CALL),
            accepted: AtomicUsize::new(0),
            singles: Semaphore::new(IN_FLIGHT),
            outage: Outage::default(),
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.off.lock().is_some()
    }

    /// Takes the keys that are too many for one call out of it.
    pub(super) fn split_off(&self, keys: &mut Vec<String>) -> Option<Vec<String>> {
        let most = self.keys_per_call.load(Relaxed);
        (!self.is_off() && keys.len() > most).then(|| keys.split_off(most))
    }

    /// Waits until one more request for a single object may be in flight. Calls `progress` meanwhile: the
    /// other batches of the worker may take minutes.
    pub(super) async fn permit(&self, progress: &impl Fn()) -> Option<SemaphorePermit<'_>> {
        let mut acquiring = pin!(self.singles.acquire());
        loop {
            match timeout(PROGRESS_EVERY, &mut acquiring).await {
                // It is never closed.
                Ok(permit) => return permit.ok(),
                Err(_) => progress(),
            }
        }
    }

    /// Records that the store accepted a call with this many keys.
    pub(super) fn accepted(&self, keys: usize) {
        self.accepted.fetch_max(keys, Relaxed);
    }

    fn lower(&self, keys: usize) -> bool {
        self.keys_per_call.fetch_min(keys, Relaxed) > keys
    }
}

impl Objects {
    /// Returns why objects are deleted one by one, if they are.
    pub fn one_by_one(&self) -> Option<String> {
        self.bulk.off.lock().clone()
    }

    /// Deletes one by one from now on, if the settings leave the choice, the store itself refused
    /// DeleteObjects, and it takes DeleteObject. Otherwise returns the error to report.
    pub(super) async fn turn_bulk_off(&self, refused: CallError) -> Result<(), CallError> {
        let refusal = match &refused {
            CallError::Unsupported(refusal) | CallError::Rejected(refusal) if refusal.has_code => {
                refusal
            }
            _ => return Err(refused),
        };
        if self.bulk.setting != BulkDelete::Auto || !self.refuses_the_other_checksum().await {
            return Err(refused);
        }
        match self.delete_one(&self.probe_key()).await {
            Ok(answer) if answer.any_gone() => self.note_in_breaker(&Ok(answer)),
            Err(error @ CallError::NoBucket) => return Err(error),
            _ => return Err(refused),
        }
        let Refusal { reason, .. } = refusal;
        let mut off = self.bulk.off.lock();
        if off.is_none() {
            info!(
                "the store does not accept DeleteObjects ({reason}): deleting objects one by one"
            );
            *off = Some(format!("the store does not accept DeleteObjects: {reason}"));
        }
        Ok(())
    }

    async fn refuses_the_other_checksum(&self) -> bool {
        let checksum = if self.md5 { Checksum::Auto } else { Checksum::Md5 };
        match self.with_checksum(checksum).call(&[self.probe_key()]).await {
            Err(CallError::Unsupported(refusal) | CallError::Rejected(refusal)) => refusal.has_code,
            _ => false,
        }
    }

    /// Whether a rejected call should be sent again in another way, because the store has no
    /// DeleteObjects or takes fewer keys in one: later calls have at most half as many. If not, one of
    /// its keys is at fault.
    /// Also returns how long the pace made it wait.
    pub(super) async fn had_too_many_keys(
        &self,
        keys: usize,
        progress: &impl Fn(),
    ) -> Result<(bool, Duration), ObjectsError> {
        let (mut rejected, mut waited) = (None, Duration::ZERO);
        if keys > self.bulk.accepted.load(Relaxed).max(1) {
            let probes: Vec<_> = (0..keys).map(|n| format!("{}{n}{PROBE}", self.prefix)).collect();
            let answered;
            (answered, waited) = self.send_in_pace(&probes, progress).await;
            match answered {
                Err(CallError::Rejected(refusal) | CallError::Unsupported(refusal)) => {
                    rejected = Some(refusal.reason);
                }
                // Not known now. Without their number as the cause, fewer keys are sent as well.
                Err(CallError::Retry { .. }) => return Ok((false, waited)),
                answered => {
                    self.judge_probe(answered)?;
                    self.bulk.accepted(keys);
                    return Ok((false, waited));
                }
            }
        }
        // If the store does not delete one key either, their number is not the cause.
        self.probe().await?;
        if self.bulk.is_off() {
            return Ok((true, waited));
        }
        if let Some(reason) = &rejected
            && self.bulk.lower(keys.div_ceil(2))
        {
            let half = keys.div_ceil(2);
            info!("the store does not take {keys} keys in one call ({reason}): sending {half}");
        }
        Ok((rejected.is_some(), waited))
    }
}
