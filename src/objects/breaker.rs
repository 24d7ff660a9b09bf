//! The circuit breaker: while the store fails, workers claim no further batches.

use super::classify::{Answer, CallError};

use crate::mutex::Mutex;

/// Open from the first call that the store fails to the first one that it answers. Batches that are
/// already claimed keep retrying; a worker reads the breaker before it claims.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Option<String>>);

impl Breaker {
    /// Reads the outcome of a call. Throttling does not open the breaker, nor does a key's own error.
    pub fn note(&self, called: &Result<Answer, CallError>) {
        let failure = match called {
            // One key's failure may be its own. If it was a probe, its caller gets the error.
            Ok(answer) if answer.verdicts.len() == 1 && answer.failure().is_some() => return,
            Ok(answer) => answer.failure(),
            Err(CallError::Rejected(_) | CallError::Retry { slow_down: true, .. }) => return,
            Err(CallError::NoBucket) => Some("the bucket does not exist".into()),
            Err(
                CallError::Denied(reason)
                | CallError::WrongRegion { reason, .. }
                | CallError::Unsupported(reason)
                | CallError::Retry { reason, .. },
            ) => Some(reason.clone()),
        };
        *self.0.lock() = failure;
    }

    /// Returns why the breaker is open, if it is.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
