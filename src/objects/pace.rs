//! Limits keys per second: S3 counts every key as a write, and answers SlowDown above its limit.

use std::{sync::MutexGuard, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::KEYS_PER_CALL;
use crate::mutex::Mutex;

/// The lowest rate, in keys per second, that SlowDown leads to.
const SLOWEST: f64 = 50.0;
/// The rate that the first SlowDown halves for a worker without a limit. AWS allows about 3,500
/// deletes per second and prefix.
const UNLIMITED: f64 = 3000.0;

/// Spreads keys over time. The rate halves on SlowDown and grows by a tenth with every thousand keys that
/// are deleted.
#[derive(Debug)]
pub(super) struct Pace {
    limit: Option<f64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    keys_per_second: Option<f64>,
    next_free: Instant,
    /// When the last SlowDown lowered the rate.
    slowed_at: Option<Instant>,
    /// A SlowDown lowered the rate, and it has not fully recovered yet.
    slowed: bool,
    /// Calls that are waiting now.
    waiting: usize,
    /// Start of the current wait, if `waiting` is not 0.
    waiting_since: Instant,
    /// Sum of the earlier waits. Calls that wait at the same time count once.
    waited: Duration,
}

impl Pace {
    pub(super) fn new(max_keys_per_second: u32) -> Self {
        let limit = (max_keys_per_second > 0).then(|| f64::from(max_keys_per_second));
        let now = Instant::now();
        let state = State {
            keys_per_second: limit,
            next_free: now,
            slowed_at: None,
            slowed: false,
            waiting: 0,
            waiting_since: now,
            waited: Duration::ZERO,
        };
        Self { limit, state: Mutex::new(state) }
    }

    /// Waits until this many keys may be sent. Returns how long it waited.
    pub(super) async fn acquire(&self, keys: usize) -> Duration {
        let started = Instant::now();
        let start = self.state().book(keys, started);
        if start > started {
            let _waiting = Waiting::begin(self);
            sleep_until(start).await;
        }
        started.elapsed()
    }

    /// Pauses before a call is repeated. Counts as a wait while S3 is throttling.
    pub(super) async fn pause(&self, pause: Duration) {
        let slowed = self.state().slowed;
        let _waiting = slowed.then(|| Waiting::begin(self));
        sleep(pause).await;
    }

    /// Halves the rate, down to [`SLOWEST`]. The calls that were in flight when it was last halved say
    /// nothing about the new rate.
    pub(super) fn slow_down(&self, sent_at: Instant) {
        let mut state = self.state();
        if state.slowed_at.is_some_and(|slowed| sent_at <= slowed) {
            return;
        }
        state.slowed_at = Some(Instant::now());
        let now = state.keys_per_second.unwrap_or(UNLIMITED);
        let slowest = self.limit.map_or(SLOWEST, |limit| limit.min(SLOWEST));
        let rate = (now / 2.0).max(slowest);
        state.keys_per_second = Some(rate);
        if !state.slowed {
            state.slowed = true;
            warn!("S3 returned SlowDown: lowered the delete rate to {rate:.0} keys/s");
        }
    }

    /// Raises the rate by a tenth for every thousand keys that were deleted, up to the limit.
    pub(super) fn recover(&self, keys: usize) {
        let mut state = self.state();
        let Some(now) = state.keys_per_second else {
            return;
        };
        let grown = now * 1.1_f64.powf(keys as f64 / KEYS_PER_CALL as f64);
        state.keys_per_second = match self.limit {
            Some(limit) => Some(grown.min(limit)),
            None if grown > UNLIMITED * 4.0 => None,
            None => Some(grown),
        };
        if state.slowed && state.keys_per_second == self.limit {
            state.slowed = false;
            info!("S3 throttling cleared: deleting at the full rate again");
        }
    }

    /// Returns what calls are waiting for, if they are.
    pub(super) fn waiting_for(&self) -> Option<String> {
        let state = self.state();
        let rate = state.keys_per_second.filter(|_| state.waiting > 0)?;
        Some(match state.slowed {
            true => format!("S3 (SlowDown, {rate:.0} keys/s)"),
            false => format!("s3.max_keys_per_second ({rate:.0})"),
        })
    }

    /// Returns for how long at least one call was waiting.
    pub(super) fn waited(&self) -> Duration {
        let state = self.state();
        match state.waiting {
            0 => state.waited,
            _ => state.waited + state.waiting_since.elapsed(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Returns when this many keys may be sent, and reserves that time.
    fn book(&mut self, keys: usize, now: Instant) -> Instant {
        let Some(rate) = self.keys_per_second else {
            return now;
        };
        let start = self.next_free.max(now);
        self.next_free = start + Duration::from_secs_f64(keys as f64 / rate);
        start
    }
}

/// A call that is waiting. Ends when dropped, because a batch may be cancelled during the wait.
struct Waiting<'a>(&'a Pace);

impl<'a> Waiting<'a> {
    fn begin(pace: &'a Pace) -> Self {
        let mut state = pace.state();
        if state.waiting == 0 {
            state.waiting_since = Instant::now();
        }
        state.waiting += 1;
        Self(pace)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        if state.waiting == 0 {
            let time = state.waiting_since.elapsed();
            state.waited += time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = KEYS_PER_CALL;

    /// Returns the keys per second at which two calls in a row may be sent.
    fn rate(pace: &Pace) -> f64 {
        let mut state = pace.state();
        let first = state.next_free.max(Instant::now());
        assert_eq!(state.book(KEYS, first), first, "no call is waiting");
        let apart = state.book(KEYS, first) - first;
        (KEYS as f64 / apart.as_secs_f64()).round()
    }

    #[test]
    fn without_a_limit_no_call_waits_until_s3_returns_slow_down() {
        let pace = Pace::new(0);
        assert_eq!(rate(&pace), f64::INFINITY);
        pace.slow_down(Instant::now());
        assert_eq!(rate(&pace), UNLIMITED / 2.0);
    }

    #[test]
    fn every_slow_down_halves_the_rate_down_to_a_minimum() {
        for (limit, rates) in [
            (0, [1500.0, 750.0, SLOWEST]),
            (4000, [2000.0, 1000.0, SLOWEST]),
            (20, [20.0, 20.0, 20.0]),
        ] {
            let pace = Pace::new(limit);
            let slower = [1, 1, 100].map(|times| {
                (0..times).for_each(|_| pace.slow_down(Instant::now()));
                rate(&pace)
            });
            assert_eq!(slower, rates, "from {limit}");
        }
    }

    #[test]
    fn successful_calls_restore_the_full_rate_within_minutes_and_never_exceed_the_limit() {
        for limit in [0, 4000] {
            let pace = Pace::new(limit);
            let full = rate(&pace);
            (0..100).for_each(|_| pace.slow_down(Instant::now()));
            let mut seconds = 0.0;
            while pace.state().slowed {
                pace.recover(KEYS);
                assert!(rate(&pace) <= full, "beyond {limit}");
                seconds += KEYS as f64 / rate(&pace);
                assert!(seconds < 300.0, "not recovered to {limit}");
            }
            pace.recover(KEYS);
            assert_eq!(rate(&pace), full, "from {limit}");
        }
    }

    #[tokio::test]
    async fn a_wait_counts_once_for_any_number_of_calls_and_also_if_it_is_cancelled() {
        let pace = Pace::new(1000);
        pace.acquire(100).await;
        assert_eq!(
            (pace.waited(), pace.waiting_for()),
            (Duration::ZERO, None),
            "the first call does not wait"
        );
        let started = Instant::now();
        tokio::join!(pace.acquire(1), pace.acquire(1), pace.acquire(1));
        let waited = pace.waited();
        assert!(waited > Duration::ZERO && waited <= started.elapsed(), "{waited:?}");
        pace.acquire(100_000).await;
        {
            let cancelled = pace.acquire(1);
            tokio::pin!(cancelled);
            assert!(futures_util::poll!(&mut cancelled).is_pending());
            assert_eq!(pace.waiting_for().as_deref(), Some("s3.max_keys_per_second (1000)"));
        }
        assert!(pace.waited() > waited);
        assert_eq!(pace.waiting_for(), None);
    }
}
