//! A mutex that a panic does not poison.

use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

/// A panic in one batch ends that batch; what it shares with others stays usable. No panic leaves a value
/// half-changed: each lock is held for one assignment or one read.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(StdMutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(StdMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
