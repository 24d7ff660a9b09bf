//! Redis: does it answer? Without it, claims stay right.

use super::finding::{Outcome, failure, ok, warning};
use crate::config::{Settings, WhenUnavailable};

pub(super) async fn answers(settings: &Settings) -> Outcome {
    let pool = match crate::redis::pool(settings) {
        Ok(pool) => pool,
        Err(error) => return Outcome::failed(&error),
    };
    let reason = match pool.ping().await {
        Ok(()) => return ok("it answers"),
        Err(reason) => reason,
    };
    let found = format!("it does not answer: {reason}");
    let check = "check that it runs and that REDIS_URL or CLEANUP_REDIS_URL is right";
    match settings.lock.when_unavailable {
        WhenUnavailable::Proceed => {
            warning(found, format!("workers claim without their lock, and evict nothing; {check}"))
        }
        WhenUnavailable::Wait => {
            failure(found, format!("workers wait for it (lock.when_unavailable); {check}"))
        }
    }
}
