//! Counts the failures of the store by class, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::classify::{Answer, CallError, Later, Verdict};

/// The classes, as the metrics name them.
pub const CLASSES: [&str; 4] = ["throttled", "unavailable", "denied", "refused"];

/// A failed call counts once, and so does every class of failed keys in an answer: a thousand keys
/// that are throttled together are one event.
#[derive(Debug, Default)]
pub(super) struct ErrorCounts([AtomicU64; CLASSES.len()]);

impl ErrorCounts {
    pub(super) fn note(&self, called: &Result<Answer, CallError>) {
        match called {
            Ok(answer) => self.note_keys(answer),
            Err(CallError::Retry { why: Later::Throttled, .. }) => self.add(0),
            Err(CallError::Retry { .. }) => self.add(1),
            Err(CallError::Denied(_) | CallError::WrongRegion { .. } | CallError::NoBucket) => {
                self.add(2);
            }
            Err(CallError::Rejected(_) | CallError::Unsupported(_)) => self.add(3),
        }
    }

    fn note_keys(&self, answer: &Answer) {
        let any = |wanted: fn(&Verdict) -> bool| answer.verdicts.iter().any(|(_, v)| wanted(v));
        let retried = any(|verdict| matches!(verdict, Verdict::Retry(_)));
        for (class, seen) in [
            (0, answer.slow_down),
            (1, (retried && !answer.slow_down) || !answer.unanswered.is_empty()),
            (2, any(|verdict| matches!(verdict, Verdict::Denied(_)))),
            (3, any(|verdict| matches!(verdict, Verdict::Refused(_)))),
        ] {
            if seen {
                self.add(class);
            }
        }
    }

    fn add(&self, class: usize) {
        self.0[class].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn by_class(&self) -> Vec<(&'static str, u64)> {
        CLASSES.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }
}
