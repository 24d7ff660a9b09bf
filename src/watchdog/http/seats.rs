//! The bound on connections: when all seats are taken, the oldest connection that has not sent its
//! request yet gives way to a newcomer.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// All seats.
#[derive(Debug)]
pub(super) struct Seats {
    size: usize,
    /// Oldest first.
    taken: Mutex<Vec<Arc<State>>>,
}

#[derive(Debug, Default)]
struct State {
    has_its_request: AtomicBool,
    gives_way: CancellationToken,
}

/// One connection's; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    state: Arc<State>,
    all: Arc<Seats>,
}

impl Seats {
    pub(super) fn new(size: usize) -> Self {
        Self { size, taken: Mutex::default() }
    }

    /// `None`: all are taken by connections that are being answered.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.lock();
        if taken.len() >= self.size {
            let silent = |state: &Arc<State>| !state.has_its_request.load(Ordering::Acquire);
            let oldest = taken.iter().position(silent)?;
            taken.remove(oldest).gives_way.cancel();
        }
        let state = Arc::<State>::default();
        taken.push(Arc::clone(&state));
        Some(Seat { state, all: Arc::clone(self) })
    }

    pub(super) fn are_taken(&self) -> bool {
        self.lock().len() >= self.size
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<State>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// From now on it stays until it is answered.
    pub(super) fn has_its_request(&self) {
        self.state.has_its_request.store(true, Ordering::Release);
    }

    /// Ends when another one has got this seat, and never while it is being answered.
    pub(super) async fn gives_way(&self) {
        self.state.gives_way.cancelled().await;
        if self.state.has_its_request.load(Ordering::Acquire) {
            pending::<()>().await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.all.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}
