//! Pauses between retries.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The retries of one operation, until a deadline.
#[derive(Debug)]
pub(crate) struct Retries {
    give_up: Instant,
    pauses: u32,
}

impl Retries {
    /// Allows retries for this long.
    pub(crate) fn within(time: Duration) -> Self {
        Self { give_up: Instant::now() + time, pauses: 0 }
    }

    /// Ends the retries after this time, if they do not end earlier.
    pub(crate) fn shorten_to(&mut self, time: Duration) {
        self.give_up = self.give_up.min(Instant::now() + time);
    }

    /// Returns whether no retry was made yet, so that a failure is logged once.
    pub(crate) fn none_yet(&self) -> bool {
        self.pauses == 0
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn are_over(&self) -> bool {
        Instant::now() >= self.give_up
    }

    /// Waits before the next try, but not beyond the deadline. Safe to cancel.
    pub(crate) async fn pause(&mut self) {
        let pause = backoff(self.pauses);
        self.pauses += 1;
        sleep(pause.min(self.give_up.saturating_duration_since(Instant::now()))).await;
    }
}

/// Returns the pause after this many tries: 100 ms doubling up to 5 s, with jitter, so that the workers of
/// a fleet do not retry at the same moment.
pub(crate) fn backoff(tries: u32) -> Duration {
    jittered(Duration::from_millis(100 << tries.min(6)).min(Duration::from_secs(5)))
}

/// Returns a random duration between half of `whole` and `whole`.
pub(crate) fn jittered(whole: Duration) -> Duration {
    whole.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::same_cases())]

        #[test]
        fn a_pause_is_between_half_and_all_of_what_it_is_meant_to_be(ms in 0..100_000_000_u64) {
            let whole = Duration::from_millis(ms);
            let pause = jittered(whole);
            prop_assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }

        #[test]
        fn pauses_double_from_a_tenth_of_a_second_up_to_five_seconds(tries in any::<u32>()) {
            let tenths = 2_u64.saturating_pow(tries);
            let whole = Duration::from_millis(tenths.saturating_mul(100).min(5000));
            let pause = backoff(tries);
            prop_assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
    }
}
