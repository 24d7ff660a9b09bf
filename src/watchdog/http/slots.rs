//! Bounds the number of connections: when all slots are taken, the oldest connection that has not sent
//! its request yet gives way to a new one.

use std::{
    future::pending,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::CancellationToken;

use crate::mutex::Mutex;

/// The slots of all connections.
#[derive(Debug)]
pub(super) struct Slots {
    size: usize,
    /// Oldest first.
    taken: Mutex<Vec<Arc<State>>>,
}

#[derive(Debug, Default)]
struct State {
    request_received: AtomicBool,
    evicted: CancellationToken,
}

/// The slot of one connection; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    state: Arc<State>,
    all: Arc<Slots>,
}

impl Slots {
    /// Creates `size` free slots.
    pub(super) fn new(size: usize) -> Self {
        Self { size, taken: Mutex::default() }
    }

    /// Takes a slot. `None`: all slots belong to connections whose request is being answered.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        let mut taken = self.lock();
        if taken.len() >= self.size {
            let is_idle = |state: &Arc<State>| !state.request_received.load(Ordering::Acquire);
            let oldest = taken.iter().position(is_idle)?;
            taken.remove(oldest).evicted.cancel();
        }
        let state = Arc::<State>::default();
        taken.push(Arc::clone(&state));
        Some(Slot { state, all: Arc::clone(self) })
    }

    /// Returns whether all slots are taken.
    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= self.size
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<State>>> {
        self.taken.lock()
    }
}

impl Slot {
    /// Marks that the request has arrived: from now on the slot is kept until it is answered.
    pub(super) fn request_received(&self) {
        self.state.request_received.store(true, Ordering::Release);
    }

    /// Completes when the slot was given to another connection; never while the request is being answered.
    pub(super) async fn evicted(&self) {
        self.state.evicted.cancelled().await;
        if self.state.request_received.load(Ordering::Acquire) {
            pending::<()>().await;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.all.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}
