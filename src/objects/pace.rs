//! Keys per second: S3 counts every key as a write, and says SlowDown when it has had enough.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

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
    /// By SlowDown, and not recovered from it yet.
    slowed: bool,
    /// Calls that wait, since when there is one, and how long there was one before.
    waiting: usize,
    waiting_since: Instant,
    waited: Duration,
}

impl Pace {
    pub fn new(max_keys_per_second: u32) -> Self {
        let limit = (max_keys_per_second > 0).then(|| f64::from(max_keys_per_second));
        let now = Instant::now();
        let state = State {
            keys_per_second: limit,
            next_free: now,
            slowed: false,
            waiting: 0,
            waiting_since: now,
            waited: Duration::ZERO,
        };
        Self { limit, state: Mutex::new(state) }
    }

    /// Waits until so many keys may be sent; says for how long.
    pub async fn take(&self, keys: usize) -> Duration {
        let asked = Instant::now();
        let start = self.state().book(keys, asked);
        if start > asked {
            let _waiting = Waiting::begin(self);
            sleep_until(start).await;
        }
        asked.elapsed()
    }

    /// A pause before a call is made again.
    pub async fn rest(&self, pause: Duration) {
        let slowed = self.state().slowed;
        let _waiting = slowed.then(|| Waiting::begin(self));
        sleep(pause).await;
    }

    pub fn slow_down(&self) {
        let mut state = self.state();
        let now = state.keys_per_second.unwrap_or(BRISK);
        let slowest = self.limit.map_or(SLOWEST, |limit| limit.min(SLOWEST));
        let rate = (now / 2.0).max(slowest);
        state.keys_per_second = Some(rate);
        if !state.slowed {
            state.slowed = true;
            warn!("S3 says SlowDown: deleting {rate:.0} keys/s, and fewer if it says so again");
        }
    }

    pub fn recover(&self) {
        let mut state = self.state();
        let Some(now) = state.keys_per_second else {
            return;
        };
        let grown = now * 1.1;
        state.keys_per_second = match self.limit {
            Some(limit) => Some(grown.min(limit)),
            None if grown > BRISK * 4.0 => None,
            None => Some(grown),
        };
        if state.slowed && state.keys_per_second == self.limit {
            state.slowed = false;
            info!("S3 takes deletions at full pace again");
        }
    }

    /// What calls wait for right now, if they do.
    pub fn waiting_for(&self) -> Option<String> {
        let state = self.state();
        let rate = state.keys_per_second.filter(|_| state.waiting > 0)?;
        Some(match state.slowed {
            true => format!("S3 (SlowDown, {rate:.0} keys/s)"),
            false => format!("s3.max_keys_per_second ({rate:.0})"),
        })
    }

    /// How long at least one call waited.
    pub fn waited(&self) -> Duration {
        let state = self.state();
        match state.waiting {
            0 => state.waited,
            _ => state.waited + state.waiting_since.elapsed(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// When so many keys may be sent.
    fn book(&mut self, keys: usize, now: Instant) -> Instant {
        let Some(rate) = self.keys_per_second else {
            return now;
        };
        let start = self.next_free.max(now);
        self.next_free = start + Duration::from_secs_f64(keys as f64 / rate);
        start
    }
}

/// A call that waits. Ends when dropped: a batch may be given up meanwhile.
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

    const KEYS: usize = 1000;

    /// Keys per second, as two calls one after the other are let through.
    fn rate(pace: &Pace) -> f64 {
        let mut state = pace.state();
        let first = state.next_free.max(Instant::now());
        assert_eq!(state.book(KEYS, first), first, "nobody is before it");
        let apart = state.book(KEYS, first) - first;
        (KEYS as f64 / apart.as_secs_f64()).round()
    }

    #[test]
    fn without_a_limit_nobody_waits_until_s3_says_slow_down() {
        let pace = Pace::new(0);
        assert_eq!(rate(&pace), f64::INFINITY);
        pace.slow_down();
        assert_eq!(rate(&pace), BRISK / 2.0);
    }

    #[test]
    fn every_slow_down_halves_the_pace_and_some_pace_is_always_left() {
        for (limit, rates) in [
            (0, [1500.0, 750.0, SLOWEST]),
            (4000, [2000.0, 1000.0, SLOWEST]),
            (20, [20.0, 20.0, 20.0]),
        ] {
            let pace = Pace::new(limit);
            let slower = [1, 1, 100].map(|times| {
                (0..times).for_each(|_| pace.slow_down());
                rate(&pace)
            });
            assert_eq!(slower, rates, "from {limit}");
        }
    }

    #[test]
    fn good_calls_bring_the_full_pace_back_within_minutes_and_never_more_than_the_limit() {
        for limit in [0, 4000] {
            let pace = Pace::new(limit);
            let full = rate(&pace);
            (0..100).for_each(|_| pace.slow_down());
            let mut seconds = 0.0;
            while pace.state().slowed {
                pace.recover();
                assert!(rate(&pace) <= full, "beyond {limit}");
                seconds += KEYS as f64 / rate(&pace);
                assert!(seconds < 300.0, "not recovered to {limit}");
            }
            pace.recover();
            assert_eq!(rate(&pace), full, "from {limit}");
        }
    }

    #[tokio::test]
    async fn a_wait_counts_once_however_many_calls_wait_and_also_when_it_is_given_up() {
        let pace = Pace::new(1000);
        pace.take(100).await;
        assert_eq!((pace.waited(), pace.waiting_for()), (Duration::ZERO, None), "the first goes");
        let started = Instant::now();
        tokio::join!(pace.take(1), pace.take(1), pace.take(1));
        let waited = pace.waited();
        assert!(waited > Duration::ZERO && waited <= started.elapsed(), "{waited:?}");
        pace.take(100_000).await;
        {
            let given_up = pace.take(1);
            tokio::pin!(given_up);
            assert!(futures_util::poll!(&mut given_up).is_pending());
            assert_eq!(pace.waiting_for().as_deref(), Some("s3.max_keys_per_second (1000)"));
        }
        assert!(pace.waited() > waited);
        assert_eq!(pace.waiting_for(), None);
    }
}
