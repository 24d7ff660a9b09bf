//! Keys per second: S3 counts every key as a write, and says SlowDown when it has had enough.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

const SLOWEST: f64 = 50.0;
/// Where a worker without a limit starts to slow down from.
const BRISK: f64 = 3000.0;

/// Spreads keys over time. Halves on SlowDown, grows by a tenth with every good call.
#[derive(Debug)]
pub(super) struct Pace {
    limit: Option<f64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keys_per_second: Option<f64>,
    next_free: Instant,
}

impl Pace {
    pub fn new(max_keys_per_second: u32) -> Self {
        let limit = (max_keys_per_second > 0).then(|| f64::from(max_keys_per_second));
        let state = State { keys_per_second: limit, next_free: Instant::now() };
        Self { limit, state: Mutex::new(state) }
    }

    /// Waits until so many keys may be sent; says for how long.
    pub async fn take(&self, keys: usize) -> Duration {
        let asked = Instant::now();
        let start = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(rate) = state.keys_per_second else {
                return Duration::ZERO;
            };
            let start = state.next_free.max(Instant::now());
            state.next_free = start + Duration::from_secs_f64(keys as f64 / rate);
            start
        };
        tokio::time::sleep_until(start).await;
        asked.elapsed()
    }

    pub fn slow_down(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.keys_per_second.unwrap_or(BRISK);
        let slowest = self.limit.map_or(SLOWEST, |limit| limit.min(SLOWEST));
        state.keys_per_second = Some((now / 2.0).max(slowest));
    }

    pub fn recover(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(now) = state.keys_per_second else {
            return;
        };
        let grown = now * 1.1;
        state.keys_per_second = match self.limit {
            Some(limit) => Some(grown.min(limit)),
            None if grown > BRISK * 4.0 => None,
            None => Some(grown),
        };
    }
}
