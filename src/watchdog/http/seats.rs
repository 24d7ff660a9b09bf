//! Bounds the number of connections: when all seats are taken, the oldest connection that has not sent
//! its request yet gives way to a new one.

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

/// The seats of all connections.
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

/// The seat of one connection; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    state: Arc<State>,
    all: Arc<Seats>,
}

impl Seats {
    /// Creates `size` free seats.
    pub(super) fn new(size: usize) -> Self {
        Self { size, taken: Mutex::default() }
    }

    /// Takes a seat. `None`: all seats belong to connections whose request is being answered.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let mut taken = self.lock();
        if taken.len() >= self.size {
            let is_idle = |state: &Arc<State>| !state.has_its_request.load(Ordering::Acquire);
            let oldest = taken.iter().position(is_idle)?;
            taken.remove(oldest).gives_way.cancel();
        }
        let state = Arc::<State>::default();
        taken.push(Arc::clone(&state));
        Some(Seat { state, all: Arc::clone(self) })
    }

    /// Returns whether all seats are taken.
    pub(super) fn are_taken(&self) -> bool {
        self.lock().len() >= self.size
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<State>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Marks that the request has arrived: from now on the seat is kept until it is answered.
    pub(super) fn has_its_request(&self) {
        self.state.has_its_request.store(true, Ordering::Release);
    }

    /// Completes when the seat was given to another connection; never while the request is being answered.
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
