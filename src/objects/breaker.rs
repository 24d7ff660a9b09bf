//! The circuit breaker: while the store fails, workers claim no further batches.

use super::{
    Objects, ObjectsError,
    classify::{Answer, CallError, Later},
    error::Action,
};
use crate::mutex::Mutex;

/// Open from the first call that the store fails to the first one that it answers. Batches that are
/// already claimed keep retrying; a worker reads the breaker before it claims.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Option<ObjectsError>>);

impl Objects {
    /// Opens or closes the breaker by the outcome of a call. Throttling does not open it, nor does a
    /// key's own error.
    pub(super) fn note_in_breaker(&self, called: &Result<Answer, CallError>) {
        let failure = match called {
            // One key's failure may be its own. If it was a probe, its caller gets the error.
            Ok(answer) if answer.verdicts.len() == 1 && answer.failure().is_some() => return,
            Ok(answer) => answer.failure().map(|reason| self.unavailable(reason)),
            Err(CallError::Rejected(_) | CallError::Retry { why: Later::Throttled, .. }) => return,
            Err(error) => Some(self.error(error.clone(), Action::Delete)),
        };
        *self.breaker.0.lock() = failure;
    }

    /// Returns why no batch should be claimed now: the store failed the last call, whatever its keys.
    pub fn failing(&self) -> Option<ObjectsError> {
        self.breaker.0.lock().clone()
    }
}
