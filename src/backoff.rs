//! Pauses between retries.

use std::time::Duration;

/// Returns the pause after this many tries: 100 ms doubling up to 5 s, with jitter, so that the workers of
/// a fleet do not retry at the same moment.
pub fn backoff(tries: u32) -> Duration {
    jittered(Duration::from_millis(100 << tries.min(6)).min(Duration::from_secs(5)))
}

/// Returns a random duration between half of `whole` and `whole`.
pub fn jittered(whole: Duration) -> Duration {
    whole.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(0),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

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
