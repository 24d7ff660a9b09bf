//! The circuit breaker: while the store fails, nothing is claimed that could not be worked on.

use std::sync::{Mutex, PoisonError};

use super::classify::{Answer, CallError};

/// Open from the first call that the store failed until the first one that it answers. Whoever has
/// a batch in hand goes on trying; whoever claims asks first.
#[derive(Debug, Default)]
pub(super) struct Breaker(Mutex<Option<String>>);

impl Breaker {
    /// Learns from a call. Throttling is an answer, and so is a refusal that is one key's own.
    pub fn note(&self, called: &Result<Answer, CallError>) {
        let failure = match called {
            // One key's failure may be its own; the probe's is told to whoever probes.
            Ok(answer) if answer.verdicts.len() == 1 && answer.failure().is_some() => return,
            Ok(answer) => answer.failure(),
            Err(CallError::Rejected(_) | CallError::Again { slow_down: true, .. }) => return,
            Err(CallError::NoBucket) => Some("the bucket does not exist".into()),
            Err(
                CallError::Denied(reason)
                | CallError::WrongRegion { reason, .. }
                | CallError::Unsupported(reason)
                | CallError::Again { reason, .. },
            ) => Some(reason.clone()),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Why it is open, if it is.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
