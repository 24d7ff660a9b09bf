//! Waiting between tries.

use std::time::Duration;

/// 100 ms doubling up to 5 s, with jitter so that a fleet does not knock in step.
pub fn backoff(tries: u32) -> Duration {
    jittered(Duration::from_millis(100 << tries.min(6)).min(Duration::from_secs(5)))
}

/// Between half of it and all of it.
pub fn jittered(whole: Duration) -> Duration {
    whole.mul_f64(0.5 + fastrand::f64() / 2.0)
}
